// Every d-th position as a sequence of its own: a window over it is a dilated window.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/nn.h"

namespace qkv::nn {

// [B, H, S, D] -> [B * d, H, ceil(S / d), D]; sequence b * d + r has the positions r, r + d, ...
// What is missing at the end is 0.
Tensor dilate(const Tensor& x, std::int64_t d);
// Back again.
Tensor undilate(const Tensor& x, std::int64_t d, std::int64_t length);
// A mask of padding for these sequences; keys [B, H, S, D] before.
Mask dilated_mask(const Mask& mask, const Tensor& keys, std::int64_t d);
// Boolean [1, H, count, stored]: who sees whom when the queries are the last of what is stored.
Tensor dilated_pairs(const std::vector<std::int64_t>& dilations, std::int64_t half_window,
                     std::int64_t count, std::int64_t stored);

}  // namespace qkv::nn
