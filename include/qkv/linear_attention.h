// Attention whose weights are products of features instead of exponentials of scores. Sums of keys
// and values then serve every query, and the cost is linear in the length. docs/long.md says when
// that is worth it.
//
//   w_ij = f(q_i) . g(k_j) >= 0          out_i = sum_j w_ij v_j / sum_j w_ij   over the visible j
//
// Performers (Choromanski et al. 2021) draw f and g so that w_ij estimates exp(scale q_i . k_j).
#pragma once

#include <cstdint>
#include <optional>

#include "qkv/tensor.h"

namespace qkv {

// y_i = sum over j <= i of (a_i . b_j) c_j; over j >= i when reversed. a, b [B, H, S, P] and
// c [B, H, S, R] -> [B, H, S, R]. By sums of chunks: time and memory are linear in S.
Tensor causal_product(const Tensor& a, const Tensor& b, const Tensor& c, bool reverse = false);

// The second half: features to results. queries [B, H, Sq, F], keys [B, Hk, Sk, F] and values
// [B, Hk, Sk, Dv] -> [B, H, Sq, Dv]; H a multiple of Hk. A row whose weights are all 0 (below 1e-30
// in sum) gives zeros. Causal needs Sq = Sk.
Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        bool causal = false);

// The sums that stand for all keys and values so far: what a decoder carries along. Its size does
// not depend on the length.
struct LinearState {
  // f32 [B, Hk, F, W]: of features times values, then of features; W is Dv + 1 or a little more,
  // a multiple of 8, and what follows is 0
  Tensor sums{};
  Tensor top{};  // f32 [B, Hk]: the exponent all features are relative to (softmax)
};
// The same for keys that follow those of the state, which then includes them. `decay` is what
// KeyFeatures tells. Nothing is recorded.
Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& decay, LinearState& state);

// Directions to draw features from, f32 [features, size]: orthogonal within blocks of `size`, as
// long as normal vectors are. The same seed gives the same ones.
Tensor orthogonal_directions(std::int64_t features, std::int64_t size, std::uint64_t seed);

enum class FeatureKind : std::uint8_t {
  softmax,  // exp(w . x - |x|^2 / 2) / sqrt(F), of x times sqrt(scale): unbiased for exp(scale q.k)
  relu,     // max(w . x, 0) / sqrt(F) + 1e-3: a kernel of its own
};
struct FeatureOptions {
  FeatureKind kind = FeatureKind::softmax;
  std::optional<float> scale{};  // 1/sqrt(D) when absent
  Tensor visible{};  // [B, 1, Sk, 1], times the features of keys: 0 hides one; all when undefined
};
// x [B, H, S, D] and directions f32 [F, D] -> [B, H, S, F]. Exponents are relative to the largest
// of their row (queries), or of their head (keys): that factor cancels in attention, so it counts
// as a constant in gradients.
Tensor query_features(const Tensor& x, const Tensor& directions,
                      const FeatureOptions& options = {});
struct KeyFeatures {
  Tensor features;
  Tensor top;    // f32 [B, H]: the largest exponent, not below `top_before`; undefined for relu
  Tensor decay;  // f32 [B, H]: times what was summed relative to `top_before`; 0 where that is -inf
};
KeyFeatures key_features(const Tensor& x, const Tensor& directions,
                         const FeatureOptions& options = {}, const Tensor& top_before = {});

// Both halves: softmax(scale Q K^T) V by random features. Long inputs (on a GPU: those whose
// features would take more than a sixteenth of its memory) go through in segments, so that beyond
// the result memory hardly grows with the length; gradients make features again.
Tensor performer_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& directions, const FeatureOptions& options = {},
                           bool causal = false);

// The weights w_ij / sum_j w_ij themselves, f32 [B, H, Sq, Sk]; for looking, never on the way.
Tensor linear_attention_weights(const Tensor& queries, const Tensor& keys, bool causal = false);

}  // namespace qkv
