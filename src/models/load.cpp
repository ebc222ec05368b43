#include "models/load.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/backend.h"
#include "core/check.h"
#include "io/file.h"
#include "models/presets.h"
#include "qkv/checkpoint.h"

namespace qkv {
namespace {

// In checkpoints, but not parameters: tables that are computed, buffers of masks, and what heads of
// pre-training leave behind.
bool is_ignored(const std::string& name) {
  static constexpr const char* kSuffixes[] = {".position_ids",
                                              ".attn.bias",
                                              ".attn.masked_bias",
                                              ".rotary_emb.inv_freq",
                                              "EncDecAttention.relative_attention_bias.weight",
                                              "embed_positions.weight",
                                              "lm_head.decoder.bias",
                                              "cls.predictions.decoder.bias"};
  static constexpr const char* kParts[] = {"cls.seq_relationship.", "pooler.dense."};
  const auto ends = [&](const char* s) { return name.ends_with(s); };
  const auto contains = [&](const char* s) { return name.find(s) != std::string::npos; };
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes), ends) ||
         std::any_of(std::begin(kParts), std::end(kParts), contains);
}

constexpr std::uint64_t kConfigBytes = 16 << 20;

// At most this many names of one kind are listed: enough to see what is wrong.
constexpr std::size_t kListed = 20;

void list(std::string& message, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  message += fmt::format("\n  {} ({}):", title, names.size());
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) message += "\n    " + names[i];
  if (names.size() > kListed) message += fmt::format("\n    and {} more", names.size() - kListed);
}

void load_parameters(Model& model, const Checkpoint& checkpoint, const std::string& folder,
                     const LoadOptions& options) {
  std::set<std::string> used;
  std::vector<std::string> missing, misshapen, unexpected;
  const int total = static_cast<int>(checkpoint.names().size());
  model.visit(nn::Visitor([&](const std::string& name, Tensor& parameter, const Shape& shape) {
    used.insert(name);
    if (options.progress) options.progress(static_cast<int>(used.size()), total);
    if (!checkpoint.contains(name)) {
      missing.push_back(fmt::format("{} {}", name, shape));
      return;
    }
    const Tensor stored = checkpoint[name];
    if (stored.shape() != shape || !is_floating(stored.dtype())) {
      misshapen.push_back(
          fmt::format("{} is {} {}, expected {}", name, stored.dtype(), stored.shape(), shape));
      return;
    }
    parameter = to(options.dtype ? to(stored, *options.dtype) : stored, options.device);
    if (options.writable && parameter.is_read_only()) {
      Tensor copy = Tensor::empty(shape, {parameter.dtype()});
      backend(kCpu).copy(parameter, copy);
      parameter = copy;
    }
  }));
  for (const std::string& name : checkpoint.names()) {
    if (!used.contains(name) && !is_ignored(name)) unexpected.push_back(name);
  }
  if (missing.empty() && misshapen.empty() && unexpected.empty()) return;
  std::string message =
      fmt::format("{}: the tensors do not fit config.json ({})", folder, model.info().architecture);
  list(message, "missing", missing);
  list(message, "of the wrong shape or dtype", misshapen);
  list(message, "unexpected", unexpected);
  throw Error(message);
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& folder, const LoadOptions& options) {
  check(!options.dtype || is_floating(*options.dtype),
        "load_model: weights can be f32, bf16 or f16, not {}", options.dtype.value_or(DType::f32));
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  ModelSource source;
  source.config = Config::read(config);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  source.has_checkpoint = true;
  source.stores = [&](const std::string& name) { return checkpoint.contains(name); };
  std::unique_ptr<Model> model = make_family(source);
  load_parameters(*model, checkpoint, folder, options);
  model->tie();
  ModelAccess::set_config(*model, read_file(config, kConfigBytes));
  return model;
}

std::unique_ptr<Model> make_model(const std::string& config, std::uint64_t seed, DType dtype) {
  const std::string preset = preset_config(config);
  ModelSource source;
  source.config = preset.empty() ? Config::read(config) : Config::parse(preset, config);
  source.stores = [](const std::string&) { return false; };
  std::unique_ptr<Model> model = make_family(source);
  std::int64_t count = 0;
  model->visit(nn::Visitor([&](const std::string& name, Tensor&, const Shape& shape) {
    check(!__builtin_add_overflow(count, shape.numel(), &count) && count < std::int64_t{1} << 38,
          "{}: more than 2^38 parameters (at {}); is the config right?", config, name);
  }));
  nn::initialize(*model, seed, {.dtype = dtype, .uniform = true});
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
  write_file_atomically((base / "config.json").string(), model.config_text());
}

}  // namespace qkv
