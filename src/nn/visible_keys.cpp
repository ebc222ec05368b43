#include "nn/visible_keys.h"

#include "core/check.h"

namespace qkv::nn {

Tensor visible_keys(const char* layer, const Mask& mask, const Shape& keys, Device device) {
  const std::int64_t batch = keys[0], length = keys[1];
  check(mask.left < 0 && mask.right < 0 && !mask.causal_part && !mask.query_offsets.defined() &&
            !mask.global_positions.defined(),
        "{}: of masks it takes that of padding alone, and causal from its config", layer);
  if (mask.key_lengths.defined()) {
    check(mask.key_lengths.dtype() == DType::i32 && mask.key_lengths.shape() == Shape{batch},
          "{}: mask.key_lengths must be i32 [{}], got {} {}", layer, batch,
          mask.key_lengths.dtype(), mask.key_lengths.shape());
    const auto lengths = mask.key_lengths.to_vector<std::int32_t>();
    std::vector<float> visible(static_cast<std::size_t>(batch * length), 0);
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int32_t seen = lengths[static_cast<std::size_t>(b)];
      check(seen >= 0 && seen <= length, "{}: mask.key_lengths[{}] must be 0 to {}, got {}", layer,
            b, length, seen);
      std::fill_n(visible.begin() + b * length, seen, 1.0f);
    }
    return to(Tensor::from(visible, {batch, 1, length, 1}), device);
  }
  const Tensor& pairs = mask.allowed_pairs;
  if (!pairs.defined()) return {};
  check(pairs.rank() == 4 && pairs.size(0) == batch && pairs.size(1) == 1 && pairs.size(2) == 1 &&
            pairs.size(3) >= length,
        "{}: pairs of a query and a key cannot be hidden; a mask of padding is [{}, 1, 1, {}], got "
        "{}",
        layer, batch, length, pairs.shape());
  // Before the last `length` keys lie those of a cache, which were taken care of when they came.
  const Tensor fresh = slice(pairs, 3, pairs.size(3) - length, pairs.size(3));
  return to(to(reshape(fresh, {batch, 1, length, 1}), DType::f32), device);
}

}  // namespace qkv::nn
