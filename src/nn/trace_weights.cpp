#include "nn/trace_weights.h"

#include <cmath>

#include "qkv/autograd.h"

namespace qkv::nn {
namespace {

constexpr float kLeast = 1e-30f;

// scale q . k, f32 [B, H, Sq, Sk]
Tensor scores_of(const Attended& x, const AttentionOptions& options) {
  const std::int64_t batch = x.queries.size(0), heads = x.queries.size(1);
  const std::int64_t key_heads = x.keys.size(1), length = x.keys.size(2), size = x.keys.size(3);
  const Tensor apart = reshape(to(x.keys, DType::f32), {batch, key_heads, 1, length, size});
  const Tensor keys = reshape(expand(apart, {batch, key_heads, heads / key_heads, length, size}),
                              {batch, heads, length, size});
  const double factor = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(size));
  return scale(matmul(to(x.queries, DType::f32), transpose(keys, 2, 3)), factor);
}

}  // namespace

void trace_weights(const AttentionCall& call, const Attended& x, const AttentionOptions& options,
                   const Tensor& weights) {
  if (call.trace == nullptr) return;
  const TapePause pause;
  if (call.trace->attentions) call.trace->attention_weights.push_back(weights);
  if (!call.trace->on_attention) return;
  const std::vector<float> scores = scores_of(x, options).to_vector<float>();
  std::vector<float> bias = to(weights, DType::f32).to_vector<float>();
  for (std::size_t i = 0; i < bias.size(); ++i) {
    bias[i] = std::log(std::max(std::abs(bias[i]), kLeast)) - scores[i];
  }
  AttentionOptions same = options;
  same.bias = Bias::fixed(to(Tensor::from(bias, weights.shape()), weights.device()));
  call.trace->on_attention({false, x.queries, x.keys, x.values, same});
}

}  // namespace qkv::nn
