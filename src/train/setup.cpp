#include "train/setup.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

using nlohmann::ordered_json;

// A config written into the run's own need not repeat what the tokenizer knows.
std::string completed(const std::string& text, const Tokenizer& tokenizer) {
  ordered_json json = ordered_json::parse(text);
  const auto set = [&](const char* key, std::optional<std::int64_t> value) {
    if (!json.contains(key) && value) json[key] = *value;
  };
  set("vocab_size", tokenizer.size());
  set("pad_token_id", tokenizer.pad_id());
  set("bos_token_id", tokenizer.id("<s>"));
  set("eos_token_id", tokenizer.id("</s>"));
  set("decoder_start_token_id", tokenizer.pad_id());
  return json.dump(2) + "\n";
}

void move_to(Model& model, Device device) {
  model.visit(nn::Visitor([&](const std::string&, Tensor& parameter, const Shape&) {
    parameter = to(parameter, device);
  }));
  model.tie();
}

}  // namespace

std::string tokenizer_path(const TrainConfig& config) {
  if (!config.tokenizer.empty()) return config.tokenizer;
  check(std::filesystem::is_directory(config.model),
        "train: \"tokenizer\" is missing; `qkv tokenizer train` makes one");
  return config.model;
}

std::unique_ptr<Model> make_trained_model(const TrainConfig& config, const Tokenizer& tokenizer) {
  const bool is_new = !config.model_config.empty() || !std::filesystem::is_directory(config.model);
  if (!is_new) {
    return load_model(config.model,
                      {.dtype = config.dtype, .writable = true, .device = config.device});
  }
  const std::string what =
      config.model_config.empty() ? config.model : completed(config.model_config, tokenizer);
  std::unique_ptr<Model> model = make_model(what);
  check(model->info().vocabulary >= tokenizer.size(),
        "train: the model has {} tokens and the tokenizer {}", model->info().vocabulary,
        tokenizer.size());
  nn::initialize(*model, config.seed,
                 {.deviation = static_cast<float>(config.deviation),
                  .dtype = config.dtype,
                  .xavier = config.xavier});
  move_to(*model, config.device);
  return model;
}

Optimizer make_optimizer(const TrainConfig& config, Model& model) {
  std::vector<Tensor> decayed, undecayed;
  for (const nn::Parameter& p : nn::parameters(model)) {
    (p.value.rank() > 1 ? decayed : undecayed).push_back(p.value);
  }
  return Optimizer(decayed, config.optimizer, undecayed);
}

}  // namespace qkv
