// A product whose sums are not rounded.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// matmul with a result in f32, whatever a is. Recorded.
Tensor matmul_f32(const Tensor& a, const Tensor& b);

}  // namespace qkv
