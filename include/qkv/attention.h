// softmax(scale * Q K^T) V, forward and backward, with every mask and bias people use, and the
// health of its scores. docs/attention.md derives it; the definitions here are the contract that
// every kernel is tested against.
//
//   a_ij = scale * (q_i . k_j)              c_ij = softcap * tanh(a_ij / softcap)  (softcap > 0)
//   s_ij = c_ij + bias_ij                   p_ij = exp(s_ij - lse_i) over the visible j
//   out_i = sum_j p_ij v_j
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {

// Where the diagonal of a causal or windowed mask lies when Sq != Sk: query i stands at key
// position i + o.
enum class Align : std::uint8_t {
  bottom_right,  // o = Sk - Sq (or length_k - length_q): the last query sees the last key
  top_left,      // o = 0
};

// Who sees whom. Parts combine by "and"; a default Mask hides nothing.
struct Mask {
  bool causal_part = false;  // j <= i + o
  std::int64_t left = -1;    // i + o - left <= j, -1 = unbounded
  std::int64_t right = -1;   // j <= i + o + right, -1 = unbounded
  Align align = Align::bottom_right;
  std::optional<std::int64_t> offset{};  // o itself, instead of `align`; may be negative
  Tensor offset_per_sequence{};          // i32 [B]: one o per sequence, instead of `align`
  Tensor key_lengths{};                  // i32 [B]: j < key_lengths[b]. On a GPU they are not
                                         // checked but cut to 0 .. Sk, and decoding waits for
                                         // nothing
  Tensor query_lengths{};                // i32 [B]: rows from query_lengths[b] on see nothing
  Tensor query_offsets{};                // i32 [B+1]: packed sequences, q is [T, H, D]
  Tensor key_offsets{};                  // i32 [B+1]: the same for k and v; absent = query_offsets
  Tensor allowed_pairs{};                // boolean, broadcastable to [B, H, Sq, Sk]
  Tensor global_positions{};             // boolean [Sk] or [B, Sk]: sees, and is seen, outside
                                         // the window; query i is position i + o
  std::int64_t global_first = 0;         // so are the positions before this one

  static Mask causal(Align align = Align::bottom_right);
  static Mask window(std::int64_t left, std::int64_t right);
  static Mask lengths(Tensor keys, Tensor queries = {});
  static Mask packed(Tensor query_offsets, Tensor key_offsets = {});
  static Mask allowed(Tensor pairs);
  // Exempts these positions from the window it is combined with.
  static Mask global(Tensor positions);
  // The same for the first `count` positions: these a GPU can tell apart without looking.
  static Mask global(std::int64_t count);
  static Mask at_offset(std::int64_t offset);
  static Mask at_offset(Tensor per_sequence);

  // Both at once. Windows intersect; two different tensors of one kind throw Error.
  friend Mask operator&(const Mask& a, const Mask& b);
};

// What is added to the scores: at most one kind.
struct Bias {
  Tensor values{};  // floating, broadcastable to [B, H, Sq, Sk]; -inf hides
  Tensor slopes{};  // ALiBi: f32 [H] or [B, H]; bias_ij = -slope_h * |i + o - j|
  Tensor table{};   // relative positions: f32 [buckets, H], as in T5; row = bucket(j - (i + o))
  bool bidirectional = true;        // of the table: half of the buckets for keys after the query
  std::int64_t max_distance = 128;  // of the table: beyond it all distances share a bucket
  bool gradient = true;             // false: backward skips dbias (an additive mask needs none)

  static Bias tensor(Tensor values);
  static Bias fixed(Tensor values);  // tensor without gradient
  static Bias alibi(Tensor slopes);
  static Bias relative(Tensor table, bool bidirectional, std::int64_t max_distance = 128);

  bool defined() const { return values.defined() || slopes.defined() || table.defined(); }
};

// The bucket of a relative position (key minus query), as T5 defines it.
std::int64_t relative_bucket(std::int64_t relative, std::int64_t buckets, bool bidirectional,
                             std::int64_t max_distance);

// What a forward call can also tell; combine with |. All are computed from the tiles of that
// same call, and all are f32 except top_index.
enum class Statistics : std::uint32_t {
  none = 0,
  max_logit = 1,      // max over visible j of a_ij (before softcap and bias)       [B, H]
  score_moments = 2,  // mean and variance of s_ij over the visible pairs           [B, H]
  entropy = 4,        // H_i = lse_i - sum_j p_ij s_ij in nats                      [B, H, Sq]
                      // its mean, and the mean of H_i / log(visible_i)             [B, H]
  top_weight = 8,     // max_j p_ij and its j, and with them the saturation         [B, H, Sq]
  received = 16,      // sum over i of p_ij                                         [B, H, Sk]
  saturation = 32,    // the share of rows with max_j p_ij above 0.99               [B, H]
  all = 63,
};
constexpr Statistics operator|(Statistics a, Statistics b) {
  return static_cast<Statistics>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr bool has(Statistics set, Statistics one) {
  return (static_cast<std::uint32_t>(set) & static_cast<std::uint32_t>(one)) != 0;
}

struct AttentionOptions {
  std::optional<float> scale{};  // 1/sqrt(D) when absent
  Mask mask{};
  Bias bias{};
  float softcap = 0;  // 0 = none
  float dropout = 0;  // in [0, 1): each p_ij is kept with 1 - dropout and divided by it
  std::uint64_t seed = 0;
  Tensor sinks{};  // f32 [H]: a score that joins the denominator and carries no value
  // k and v are i8, as quantize(x) makes them, and these are the scales of their rows: f32
  // [B, Hk, Sk]. Few queries read the bytes as they are; many, a copy in the dtype of q. Forward
  // only, and not for packed sequences.
  Tensor key_scale{}, value_scale{};
  // Keys and values in pages: k [P, Hk, page, D] and v [P, Hk, page, Dv] are pages of any
  // sequences, and row b of this, i32 [B, N] on the CPU, names those of sequence b in their order:
  // its key j is row j % page of page pages[b][j / page]. How many it has, mask.key_lengths says
  // (on the CPU); what the table holds beyond is not looked at. Sk is N * page. Few queries read
  // the pages where they lie; many, or a tape, a copy in one piece.
  Tensor pages{};
  Statistics statistics = Statistics::none;
  bool deterministic = true;
  // f32 on a GPU: products may round what they multiply to TF32 (10 bits of mantissa), which makes
  // them about four times as fast. Permission, not an order: where there is no such kernel, for
  // the device or for the call, attention is exact. attention_kernels tells.
  bool tf32 = false;
};

// Undefined where not asked for; an Error of such a one names it and says how to ask. Packed
// sequences have [H, T] for [B, H, Sq].
struct AttentionStatistics {
  Tensor max_logit =
      Tensor::undefined("max_logit is computed where AttentionOptions::statistics has max_logit");
  Tensor score_mean = Tensor::undefined(
      "score_mean is computed where AttentionOptions::statistics has score_moments");
  Tensor score_var = Tensor::undefined(
      "score_var is computed where AttentionOptions::statistics has score_moments");
  Tensor entropy =
      Tensor::undefined("entropy is computed where AttentionOptions::statistics has entropy");
  Tensor entropy_mean =
      Tensor::undefined("entropy_mean is computed where AttentionOptions::statistics has entropy");
  Tensor entropy_relative = Tensor::undefined(
      "entropy_relative is computed where AttentionOptions::statistics has entropy");
  Tensor top_weight =
      Tensor::undefined("top_weight is computed where AttentionOptions::statistics has top_weight");
  // i32, -1 where a row sees nothing.
  Tensor top_index =
      Tensor::undefined("top_index is computed where AttentionOptions::statistics has top_weight");
  Tensor saturation =
      Tensor::undefined("saturation is computed where AttentionOptions::statistics has saturation");
  Tensor received =
      Tensor::undefined("received is computed where AttentionOptions::statistics has received");
};

struct AttentionForward {
  Tensor out;  // [B, H, Sq, Dv], dtype of q
  Tensor lse;  // f32 [B, H, Sq]: log-sum-exp of the visible scores and the sink; -inf for a row
               // that sees no key
  AttentionStatistics statistics;
};

// d loss / d(what forward returned). Converts from a tensor: most callers have only `out`.
struct AttentionOutputGrads {
  Tensor out;
  Tensor lse;      // f32, shape of lse
  Tensor entropy;  // f32, shape of lse; needs a forward that computed Statistics::entropy

  AttentionOutputGrads(Tensor out_grad, Tensor lse_grad = {}, Tensor entropy_grad = {})
      : out(std::move(out_grad)), lse(std::move(lse_grad)), entropy(std::move(entropy_grad)) {}
};

struct AttentionGrads {
  Tensor dq, dk, dv;  // shapes and dtypes of q, k, v
  Tensor dbias;       // f32, shape of the bias tensor, the slopes or the table; else undefined
  Tensor dsinks;      // f32 [H]; undefined without sinks
};

// q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv]; H a multiple of Hk; any strides.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});
AttentionForward attention_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options = {});
// `forward` and `options` are those of the forward call; p is recomputed, memory is O(S).
AttentionGrads attention_backward(const AttentionOutputGrads& grads, const Tensor& q,
                                  const Tensor& k, const Tensor& v, const AttentionForward& forward,
                                  const AttentionOptions& options = {});

// Which kernel would run, and what keeps the call from a faster one: "general: has a bias".
struct AttentionKernels {
  std::string forward, backward;
};
AttentionKernels attention_kernels(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options = {});

// What attention_weights writes. Everything by default; choose before looking at a long input.
struct WeightsSelection {
  std::vector<std::int64_t> heads{};  // empty = all
  std::vector<std::int64_t> rows{};   // empty = all
  std::int64_t pool_rows = 1;         // > 1: the mean over blocks of rows ...
  std::int64_t pool_keys = 1;         // ... and the sum over blocks of keys
};
// The weights p themselves, f32 [B, heads, ceil(rows / pool_rows), ceil(Sk / pool_keys)]; for
// looking, never on the fast path. Dropout is not applied. Not for packed sequences.
Tensor attention_weights(const Tensor& q, const Tensor& k, const AttentionOptions& options = {},
                         const WeightsSelection& selection = {});

}  // namespace qkv
