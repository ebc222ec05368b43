// Whether numbers are numbers.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// True where no element is infinite or NaN; of an undefined tensor and of integers, too.
bool is_finite(const Tensor& x);

}  // namespace qkv
