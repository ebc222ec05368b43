// Shapes and layouts of results that follow those of an argument.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// The same shape, of rank 1 or more, but for its last extent.
Shape with_last(const Shape& shape, std::int64_t extent);

// Uninitialised, of this shape and dtype, dense: the last axis innermost, the others in the order
// in which `like` (of the same rank) has them in memory. Heads split off as a view stay a view away
// from being merged.
Tensor empty_in_layout(const Tensor& like, const Shape& shape, DType dtype);

}  // namespace qkv
