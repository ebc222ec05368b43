// The gradient of broadcasting.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// x summed over the axes along which `shape` was broadcast to x.shape(), in f32 where there is
// something to sum; x itself where there is not. Not recorded.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace qkv
