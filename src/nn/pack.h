// The packed form of a weight, floating point or int8. In linear.cpp.
#pragma once

#include "qkv/nn.h"

namespace qkv::nn {

PackedWeight pack(const Weight& weight, bool transposed);

}  // namespace qkv::nn
