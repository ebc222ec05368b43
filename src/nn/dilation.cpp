#include "nn/dilation.h"

#include "nn/visible_keys.h"

namespace qkv::nn {
namespace {

std::int64_t rounded(std::int64_t length, std::int64_t d) {
  return length / d + (length % d != 0 ? 1 : 0);
}

// Axis 2 to a multiple of d, with zeros.
Tensor padded(const Tensor& x, std::int64_t d) {
  const std::int64_t missing = rounded(x.size(2), d) * d - x.size(2);
  if (missing == 0) return x;
  const Tensor zeros =
      Tensor::zeros({x.size(0), x.size(1), missing, x.size(3)}, {x.dtype(), x.device()});
  return concat({x, zeros}, 2);
}

}  // namespace

Tensor dilate(const Tensor& x, std::int64_t d) {
  if (d == 1) return x;
  const std::int64_t batch = x.size(0), heads = x.size(1), size = x.size(3);
  const std::int64_t rows = rounded(x.size(2), d);
  const Tensor apart = reshape(padded(x, d), {batch, heads, rows, d, size});
  return reshape(permute(apart, {0, 3, 1, 2, 4}), {batch * d, heads, rows, size});
}

Tensor undilate(const Tensor& x, std::int64_t d, std::int64_t length) {
  if (d == 1) return x;
  const std::int64_t batch = x.size(0) / d, heads = x.size(1), rows = x.size(2), size = x.size(3);
  const Tensor apart = permute(reshape(x, {batch, d, heads, rows, size}), {0, 2, 3, 1, 4});
  return slice(reshape(apart, {batch, heads, rows * d, size}), 2, 0, length);
}

Mask dilated_mask(const Mask& mask, const Tensor& keys, std::int64_t d) {
  if (d == 1) return mask;
  const std::int64_t batch = keys.size(0), length = keys.size(2);
  Tensor visible = visible_keys("longformer", mask, {batch, length}, keys.device());
  if (!visible.defined()) {
    if (length % d == 0) return {};
    visible = Tensor::full({batch, 1, length, 1}, 1, {DType::f32, keys.device()});
  }
  const Tensor rows = dilate(visible, d);  // [B * d, 1, rows, 1]
  return Mask::allowed(to(reshape(rows, {batch * d, 1, 1, rows.size(2)}), DType::boolean));
}

Tensor dilated_pairs(const std::vector<std::int64_t>& dilations, std::int64_t half_window,
                     std::int64_t count, std::int64_t stored) {
  const auto heads = static_cast<std::int64_t>(dilations.size());
  Tensor pairs = Tensor::zeros({1, heads, count, stored}, {DType::boolean});
  bool* row = pairs.data<bool>();
  for (const std::int64_t d : dilations) {
    for (std::int64_t i = 0; i < count; ++i, row += stored) {
      const std::int64_t here = i + stored - count;
      for (std::int64_t n = 0; n <= half_window && here - n * d >= 0; ++n) row[here - n * d] = true;
    }
  }
  return pairs;
}

}  // namespace qkv::nn
