// Operators: free functions on tensors. Each checks its arguments, allocates its result and calls
// one kernel of the tensor's device.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor.h"

namespace qkv {

// Views: no bytes move.
Tensor transpose(const Tensor& x, int axis_a, int axis_b);
Tensor permute(const Tensor& x, const std::vector<int>& axes);
Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end);
// A view where the strides allow it, else a copy. One extent may be -1.
Tensor reshape(const Tensor& x, const std::vector<std::int64_t>& extents);
Tensor expand(const Tensor& x, const Shape& shape);

Tensor contiguous(const Tensor& x);
Tensor to(const Tensor& x, DType dtype);
Tensor concat(const std::vector<Tensor>& parts, int axis);

// exp(x - max) / sum along `axis`; a slice that is all -inf gives zeros.
Tensor softmax(const Tensor& x, int axis = -1);

}  // namespace qkv
