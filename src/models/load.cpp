#include "models/load.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/quantized_group.h"
#include "io/file.h"
#include "models/load_parameters.h"
#include "models/presets.h"
#include "qkv/checkpoint.h"

namespace qkv {
namespace {

constexpr std::uint64_t kConfigBytes = 16 << 20;

// The inputs that share a scale, 0 where all of a row do; nothing without int8 weights.
std::optional<std::int64_t> group_of(Model& model) {
  std::optional<std::int64_t> group;
  model.visit(nn::Visitor([](const std::string&, Tensor&, const Shape&) {},
                          [&](const std::string&, nn::Weight& weight, const Shape&, int axis) {
                            if (!weight.is_quantized()) return;
                            const std::int64_t inputs = weight.size(axis);
                            const std::int64_t found =
                                quantized_group(inputs, weight.scale.size(axis));
                            group = std::max(group.value_or(0), found == inputs ? 0 : found);
                          }));
  return group;
}

// config.json, which says of int8 what the weights are now, not what they were when loaded.
std::string config_of(Model& model) {
  constexpr const char* kKey = "quantization_config";
  const std::optional<std::int64_t> group = group_of(model);
  const std::string& text = model.config_text();
  if (!group && !Config::parse(text, "config.json").has(kKey)) return text;
  const std::string value =
      !group
          ? ""
          : fmt::format(R"({{"quant_method": "qkv-int8", "bits": 8, "group_size": {}}})", *group);
  return with_key(text, "config.json", kKey, value);
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& folder, const LoadOptions& options) {
  check(!options.dtype || is_floating(*options.dtype) || *options.dtype == DType::i8,
        "load_model: weights can be f32, bf16, f16 or i8, not {}",
        options.dtype.value_or(DType::f32));
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  ModelSource source;
  source.config = Config::read(config);
  const std::filesystem::path generation = std::filesystem::path(folder) / "generation_config.json";
  std::string generation_text;
  if (std::error_code error; std::filesystem::exists(generation, error)) {
    generation_text = read_file(generation.string(), kConfigBytes);
    source.generation = Config::parse(generation_text, generation.string());
  }
  const Checkpoint checkpoint = Checkpoint::open(folder);
  source.has_checkpoint = true;
  source.stores = [&](const std::string& name) { return checkpoint.contains(name); };
  std::unique_ptr<Model> model = make_family(source);
  load_parameters(*model, checkpoint, folder, options);
  model->tie();
  ModelAccess::set_config(*model, read_file(config, kConfigBytes));
  ModelAccess::set_generation(*model, std::move(generation_text));
  return model;
}

std::unique_ptr<Model> make_model(const std::string& config, std::uint64_t seed, DType dtype,
                                  std::int64_t group) {
  const bool is_text = config.starts_with('{');
  const std::string preset = is_text ? config : preset_config(config);
  const std::string name = is_text ? "config.json" : config;
  ModelSource source;
  source.config = preset.empty() ? Config::read(config) : Config::parse(preset, name);
  source.stores = [](const std::string&) { return false; };
  std::unique_ptr<Model> model = make_family(source);
  std::int64_t count = 0;
  model->visit(nn::Visitor([&](const std::string& parameter, Tensor&, const Shape& shape) {
    check(!__builtin_add_overflow(count, shape.numel(), &count) && count < std::int64_t{1} << 38,
          "{}: more than 2^38 parameters (at {}); is the config right?", name, parameter);
  }));
  const bool quantizes = dtype == DType::i8;
  nn::initialize(*model, seed, {.dtype = quantizes ? DType::f32 : dtype, .uniform = true});
  if (quantizes) nn::quantize(*model, group);
  model->tie();
  ModelAccess::set_config(*model, preset.empty() ? read_file(config, kConfigBytes) : preset);
  return model;
}

void save_model(Model& model, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check(!error, "{}: cannot be made a folder: {}", folder, error.message());
  std::vector<std::pair<std::string, Tensor>> tensors;
  model.visit(nn::Visitor([&](const std::string& name, Tensor& parameter, const Shape&) {
    tensors.emplace_back(name, to(parameter, kCpu));
  }));
  const std::filesystem::path base(folder);
  save_checkpoint((base / "model.safetensors").string(), tensors);
  write_file_atomically((base / "config.json").string(), config_of(model));
  // Where there is one, config.json is not asked what to generate: without it, another text.
  const std::string& generation = ModelAccess::generation(model);
  if (!generation.empty()) {
    write_file_atomically((base / "generation_config.json").string(), generation);
  }
}

}  // namespace qkv
