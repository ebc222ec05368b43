// Which keys are tokens, for layers that cannot hide pairs of a query and a key.
#pragma once

#include "qkv/nn.h"

namespace qkv::nn {

// f32 [B, 1, S, 1]: 0 at padding; undefined when all of the S keys (of [B, S]) are tokens. An
// Error, which names `layer`, for a mask that hides more than padding.
Tensor visible_keys(const char* layer, const Mask& mask, const Shape& keys, Device device);

}  // namespace qkv::nn
