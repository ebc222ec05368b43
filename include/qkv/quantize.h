// int8: whole numbers from -127 to 127 times a scale, which is the largest absolute value of its
// group divided by 127. docs/int8.md says how models are stored and computed so.
#pragma once

#include <cstdint>

#include "qkv/tensor.h"

namespace qkv {

struct Quantized {
  Tensor values{};  // i8 [..., K]
  Tensor scale{};   // f32 [..., G]: element k is values[k] * scale[k / group]
  // Rows were spread before they were rounded: 16 (or 4) elements, a share of K apart, by a
  // Hadamard transform, so that an outlier costs none of the others its precision. Products with
  // rows spread the same way are what they were.
  bool spread = false;
};

// x [..., K] floating point; `group` elements along the last axis share a scale (32, 64 or 128, the
// last group may be shorter), or all of a row do (0). A group that is not all finite has the scale
// NaN. The way back is within scale / 2 of every element, 2 * scale where rows are spread.
Quantized quantize(const Tensor& x, std::int64_t group = 0, bool spread = false);
Tensor dequantize(const Quantized& x, DType dtype = DType::f32);

// Rows of an int8 table [V, D] by ids, as f32 [..., D].
Tensor embedding(const Tensor& ids, const Quantized& table);

}  // namespace qkv
