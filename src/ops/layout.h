// Results that lie in memory as their argument does.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// Uninitialised, of this shape and dtype, dense: the last axis innermost, the others in the order
// in which `like` (of the same rank) has them in memory. Heads split off as a view stay a view away
// from being merged.
Tensor empty_in_layout(const Tensor& like, const Shape& shape, DType dtype);

}  // namespace qkv
