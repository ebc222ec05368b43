// A case of the attention tests: sizes and options as plain numbers, so that a table of them can
// be read; make_inputs turns one into tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::test {

// How q, k, v and dout lie in memory. Whatever is not part of the tensor holds NaN, so a kernel
// that reads beside it is found out.
enum class Layout : std::uint8_t {
  row_major,
  heads_inside,  // [B, S, H, D] seen as [B, H, S, D]: what a projection gives
  scattered,     // axes in another order, gaps everywhere, stride 2 between elements
  expanded,      // stride 0 over the batch and the key heads of k and v
};

// All that the scores of a row tell. `received` walks over the pairs once more.
inline constexpr Statistics kRowStatistics = Statistics::max_logit | Statistics::score_moments |
                                             Statistics::entropy | Statistics::top_weight;

// Shapes of optional tensors: empty = absent. A rank-0 tensor has no use here.
using Extents = std::vector<std::int64_t>;

struct AttentionCase {
  std::string name{};
  std::int64_t batch = 2, heads = 2, key_heads = 2;
  std::int64_t queries = 19, keys = 23, head_size = 8;
  std::int64_t value_size = 0;  // 0 = head_size
  Layout layout = Layout::row_major;

  // Packed sequences when not empty; batch, queries and keys then follow from these.
  std::vector<std::int32_t> query_offsets{}, key_offsets{};

  std::optional<float> scale{};
  bool causal = false;
  std::int64_t left = -1, right = -1;
  Align align = Align::bottom_right;
  std::optional<std::int64_t> offset{};
  std::vector<std::int32_t> offset_per_sequence{}, key_lengths{}, query_lengths{};
  Extents allowed{};  // a random boolean mask, three quarters true
  Extents global{};   // random positions, one in eight
  std::int64_t global_first = 0;

  Extents bias{};
  std::optional<DType> bias_dtype{};  // the dtype of q when absent
  bool bias_hides = false;            // a quarter of the bias is -inf
  float bias_shift = 0;               // added to every element of the bias
  bool bias_gradient = true;
  Extents slopes{};  // ALiBi: [H] or [B, H]
  std::int64_t buckets = 0;
  bool bidirectional = true;
  std::int64_t max_distance = 24;

  float softcap = 0, dropout = 0;
  std::uint64_t seed = 0x5eed0123456789ab;
  bool sinks = false;
  Statistics statistics = Statistics::none;
  bool deterministic = true;
  bool dlse = false, dentropy = false;  // gradients that arrive besides dout

  float deviation = 1;  // of the entries of q and k
  std::uint64_t data = 1;
};

// What the library is called with.
struct AttentionInputs {
  Tensor q, k, v, dout, dlse, dentropy;
  AttentionOptions options;
};
AttentionInputs make_inputs(const AttentionCase& c, DType dtype);

// The same values in another layout; the result and `x` share no bytes.
Tensor laid_out(const Tensor& x, Layout layout);

inline Tensor i32_tensor(const std::vector<std::int32_t>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

}  // namespace qkv::test
