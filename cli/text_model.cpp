#include "text_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "progress.h"

namespace qkv::cli {

std::string to_string(Task task) {
  switch (task) {
    case Task::generate: return "generate";
    case Task::encode: return "encode";
    case Task::fill: return "fill";
    default: return "classify";
  }
}

Task task_of(const ModelInfo& info) {
  if (info.kind != ModelKind::encoder) return Task::generate;
  if (info.architecture.ends_with("ForMaskedLM")) return Task::fill;
  if (info.architecture.ends_with("ForPreTraining")) return Task::fill;
  if (info.architecture.ends_with("ForSequenceClassification")) return Task::classify;
  return Task::encode;
}

namespace {

// Vectors are what every model with an encoder has; else a model does what it was made for.
bool can_do(const ModelInfo& info, Task task) {
  if (task == Task::encode) return info.kind != ModelKind::decoder;
  return task_of(info) == task;
}

void check_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  check(fs::exists(status),
        "{}: there is no such folder; a model is a folder with config.json and model.safetensors",
        folder);
  check(fs::is_directory(status), "{}: this is a file; a model is the folder it lies in", folder);
}

void add_dtype(CLI::App& command, std::string& dtype) {
  command.add_option("--dtype", dtype, "Convert the weights first (default: as stored)")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "i8"}));
}

}  // namespace

void ModelOptions::add_to(CLI::App& command) {
  command
      .add_option("model", folder,
                  "The model: a folder with config.json, model.safetensors and its tokenizer")
      ->required()
      ->type_name("DIR");
  add_dtype(command, dtype);
}

void ModelOptions::add_named_to(CLI::App& command) {
  command
      .add_option("--model", folder,
                  "The model's folder (default: the translator that comes along)")
      ->type_name("DIR");
  add_dtype(command, dtype);
}

std::unique_ptr<Model> open_model(const ModelOptions& options, const Common& common) {
  check_folder(options.folder);
  LoadOptions load;
  load.device = common.chosen_device();
  if (!options.dtype.empty()) load.dtype = dtype_from_string(options.dtype);
  Progress progress("loading");
  load.progress = [&](int done, int total) { progress.update(done, total); };
  return load_model(options.folder, load);
}

std::unique_ptr<Model> open_model(const ModelOptions& options, Task task, const Common& common) {
  std::unique_ptr<Model> model = open_model(options, common);
  const ModelInfo& info = model->info();
  const std::string kind = (info.kind == ModelKind::decoder ? "a " : "an ") + to_string(info.kind);
  check(can_do(info, task), "{}: this is {} ({}), which cannot {}; use qkv {}", options.folder,
        kind, info.architecture, to_string(task), to_string(task_of(info)));
  return model;
}

Tokenizer open_tokenizer(const std::string& folder, const std::string& remedy) {
  try {
    return Tokenizer::load(folder);
  } catch (const Error& error) {
    fail("{}; {}", error.what(), remedy);
  }
}

void frame(const Tokenizer& tokenizer, const ModelInfo& info, std::vector<std::int64_t>& ids) {
  const bool is_bare = tokenizer.kind().starts_with("sentencepiece");
  if (info.kind == ModelKind::decoder) {
    if (is_bare && info.bos_id >= 0) ids.insert(ids.begin(), info.bos_id);
    return;
  }
  // A tokenizer.json need not have a template either; an encoder-decoder wants its end all the
  // same.
  const auto& ends = info.eos_ids;
  const bool has_end =
      !ids.empty() && std::find(ends.begin(), ends.end(), ids.back()) != ends.end();
  const bool wants_end = is_bare || info.kind == ModelKind::encoder_decoder;
  if (!ends.empty() && wants_end && !has_end) ids.push_back(ends.front());
}

}  // namespace qkv::cli
