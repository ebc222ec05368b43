#include "models/load_parameters.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/backend.h"
#include "core/check.h"
#include "core/quantized_group.h"

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

// At most this many names of one kind are listed: enough to see what is wrong.
constexpr std::size_t kListed = 20;

void list(std::string& message, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  message += fmt::format("\n  {} ({}):", title, names.size());
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) message += "\n    " + names[i];
  if (names.size() > kListed) message += fmt::format("\n    and {} more", names.size() - kListed);
}

Tensor writable(const Tensor& x) {
  if (!x.defined() || !x.is_read_only()) return x;
  Tensor copy = Tensor::empty(x.shape(), {x.dtype()});
  backend(kCpu).copy(x, copy);
  return copy;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const LoadOptions& options)
      : checkpoint_(checkpoint),
        options_(options),
        total_(static_cast<int>(checkpoint.names().size())) {}

  void load(const std::string& name, Tensor& parameter, const Shape& shape) {
    const Tensor stored = fetch(name, shape, false);
    if (!stored.defined()) return;
    // Beside int8 matrices everything is f32.
    const bool is_int8 = options_.dtype == DType::i8;
    parameter = options_.dtype ? to(stored, is_int8 ? DType::f32 : *options_.dtype) : stored;
    parameter = to(parameter, options_.device);
    if (options_.writable) parameter = writable(parameter);
  }

  void load(const std::string& name, nn::Weight& weight, const Shape& shape, int axis) {
    nn::Weight stored = fetch(name, shape, true);
    if (!stored.defined()) return;
    if (stored.is_quantized() && !fetch_scale(name, stored, axis)) return;
    const DType wanted = options_.dtype.value_or(stored.dtype());
    if (stored.is_quantized() && wanted != DType::i8) stored = widened(stored, axis, wanted);
    if (wanted == DType::i8 && !stored.is_quantized()) {
      weight = nn::quantize(stored, options_.group, axis);
      drop_pages(stored);
    } else {
      weight = wanted == stored.dtype() ? stored : nn::Weight(to(stored, wanted));
    }
    const auto placed = [&](const Tensor& x) { return x.defined() ? to(x, options_.device) : x; };
    weight = {placed(weight), placed(weight.scale), weight.spread};
    if (options_.writable) weight = {writable(weight), writable(weight.scale), weight.spread};
  }

  // Throws Error unless all went well and nothing was left over.
  void finish(const std::string& where) {
    std::vector<std::string> unexpected;
    for (const std::string& name : checkpoint_.names()) {
      if (!used_.contains(name) && !is_ignored(name)) unexpected.push_back(name);
    }
    if (missing_.empty() && wrong_.empty() && unexpected.empty()) return;
    std::string message = where;
    list(message, "missing", missing_);
    list(message, "of the wrong shape or dtype", wrong_);
    list(message, "unexpected", unexpected);
    throw Error(message);
  }

 private:
  Tensor fetch(const std::string& name, const Shape& shape, bool may_be_int8) {
    used_.insert(name);
    if (options_.progress) options_.progress(static_cast<int>(used_.size()), total_);
    if (!checkpoint_.contains(name)) {
      missing_.push_back(fmt::format("{} {}", name, shape));
      return {};
    }
    const TensorInfo info = checkpoint_.info(name);
    const bool fits =
        info.dtype && (is_floating(*info.dtype) || (may_be_int8 && *info.dtype == DType::i8));
    if (info.shape != shape || !fits) {
      wrong_.push_back(fmt::format("{} is {} {}, expected {}", name,
                                   info.dtype ? to_string(*info.dtype) : info.stored_dtype,
                                   info.shape, shape));
      return {};
    }
    return checkpoint_[name];
  }

  // Its name says whether the values were spread.
  bool fetch_scale(const std::string& values, nn::Weight& weight, int axis) {
    weight.spread = checkpoint_.contains(values + "_spread_scale");
    const std::string name = values + (weight.spread ? "_spread_scale" : "_scale");
    used_.insert(name);
    if (!checkpoint_.contains(name)) {
      missing_.push_back(name + ", the scales of int8 values");
      return false;
    }
    const TensorInfo info = checkpoint_.info(name);
    const Shape& shape = info.shape;
    const bool fits = info.dtype && is_floating(*info.dtype) && shape.rank() == 2 &&
                      shape[1 - axis] == weight.size(1 - axis) &&
                      quantized_group(weight.size(axis), shape[axis]) > 0;
    if (!fits) {
      wrong_.push_back(fmt::format("{} is {} {}, which does not fit the int8 {}", name,
                                   info.dtype ? to_string(*info.dtype) : info.stored_dtype, shape,
                                   weight.shape()));
      return false;
    }
    weight.scale = to(checkpoint_[name], DType::f32);
    const std::vector<float> scales = weight.scale.to_vector<float>();
    const auto bad = std::find_if(scales.begin(), scales.end(),
                                  [](float s) { return !(std::isfinite(s) && s >= 0); });
    if (bad == scales.end()) return true;
    wrong_.push_back(fmt::format("{} has a scale of {} at {}", name, *bad, bad - scales.begin()));
    return false;
  }

  static Tensor widened(const nn::Weight& weight, int axis, DType dtype) {
    const Tensor wide = dequantize(weight.quantized(axis), dtype);
    return axis == 1 ? wide : contiguous(transpose(wide, 0, 1));
  }

  const Checkpoint& checkpoint_;
  const LoadOptions& options_;
  int total_;
  std::set<std::string> used_;
  std::vector<std::string> missing_, wrong_;
};

}  // namespace

void load_parameters(Model& model, const Checkpoint& checkpoint, const std::string& folder,
                     const LoadOptions& options) {
  Loader loader(checkpoint, options);
  model.visit(nn::Visitor([&](const std::string& name, Tensor& parameter,
                              const Shape& shape) { loader.load(name, parameter, shape); },
                          [&](const std::string& name, nn::Weight& weight, const Shape& shape,
                              int axis) { loader.load(name, weight, shape, axis); }));
  loader.finish(fmt::format("{}: the tensors do not fit config.json ({})", folder,
                            model.info().architecture));
}

}  // namespace qkv
