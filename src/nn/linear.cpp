// Linear, Embedding, norms, FeedForward.
#include <mutex>

#include "core/check.h"
#include "nn/pack.h"
#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/nn.h"

namespace qkv::nn {

// Shared by copies of a layer; two threads may come first at once.
struct Linear::Pack {
  std::mutex mutex;
  std::uint64_t id = 0;  // of the weight that was packed
  PackedWeight weight;
};

PackedWeight pack(const Weight& weight, bool transposed) {
  if (!weight.is_quantized()) return PackedWeight(weight, transposed);
  return PackedWeight(weight.quantized(), transposed);
}

Linear::Linear(const LinearConfig& config) : config_(config), pack_(std::make_shared<Pack>()) {}

void Linear::visit(const Visitor& visitor) {
  const Shape shape = config_.transposed ? Shape{config_.inputs, config_.outputs}
                                         : Shape{config_.outputs, config_.inputs};
  visitor("weight", weight, shape, config_.transposed ? 0 : 1);
  if (config_.bias) visitor("bias", bias, {config_.outputs});
}

Tensor Linear::operator()(const Tensor& x, Activation activation,
                          std::optional<DType> dtype) const {
  check(weight.defined(), "linear: the layer has no weight; load or initialize the model first");
  PackedWeight packed;
  {
    const std::scoped_lock lock(pack_->mutex);
    if (Tape::recording()) {
      pack_->weight = PackedWeight();
      pack_->id = 0;
    } else if (pack_->id != weight.id()) {
      pack_->weight = pack(weight, config_.transposed);
      pack_->id = weight.id();
      drop_pages(weight);  // one copy in memory is enough
    }
    packed = pack_->weight;
  }
  if (!Tape::recording()) return linear(x, packed, bias, activation, dtype);
  const Tensor y =
      linear(x, weight, bias, {.activation = activation, .transposed = config_.transposed});
  return dtype ? to(y, *dtype) : y;
}

Embedding::Embedding(std::int64_t rows, std::int64_t width, std::int64_t padding)
    : rows_(rows), width_(width), padding_(padding) {}

void Embedding::visit(const Visitor& visitor) { visitor("weight", weight, {rows_, width_}); }

Tensor Embedding::operator()(const Tensor& ids) const {
  check(weight.defined(), "embedding: the layer has no table; load or initialize the model first");
  if (weight.is_quantized()) return embedding(ids, weight.quantized());
  return to(embedding(ids, weight, padding_), DType::f32);
}

void Norm::visit(const Visitor& visitor) {
  visitor("weight", weight, {config_.width});
  if (!config_.rms) visitor("bias", bias, {config_.width});
}

Tensor Norm::operator()(const Tensor& x) const {
  return config_.rms ? rms_norm(x, weight, config_.eps, config_.weight_offset)
                     : layer_norm(x, weight, bias, config_.eps);
}

NormedSum Norm::operator()(const Tensor& x, const Tensor& residual, const Dropout& dropout) const {
  return config_.rms
             ? add_rms_norm(x, residual, weight, config_.eps, config_.weight_offset, dropout)
             : add_layer_norm(x, residual, weight, bias, config_.eps, dropout);
}

FeedForward::FeedForward(const FeedForwardConfig& config) : config_(config) {
  const LinearConfig in{config.hidden, config.inner, config.bias, config.transposed};
  up = Linear(in);
  if (config.gated) gate = Linear(in);
  down = Linear({config.inner, config.hidden, config.bias, config.transposed});
}

void FeedForward::visit(const Visitor& visitor) {
  if (config_.gated) visitor(config_.gate, gate);
  visitor(config_.up, up);
  visitor(config_.down, down);
}

Tensor FeedForward::operator()(const Tensor& x, Training* training) const {
  const Tensor inner =
      config_.gated ? gated(gate(x), up(x), config_.activation) : up(x, config_.activation);
  return down(dropout(inner, config_.dropout, training));
}

}  // namespace qkv::nn
