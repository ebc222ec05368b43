// How far the outliers of a row are spread before it becomes int8 (docs/int8.md).
#pragma once

#include <cstdint>

namespace qkv {

// Of a row of `width`, this many elements, a share of the width apart, are mixed by a Hadamard
// transform: a power of 4, whose root divides exactly. 1 = none.
inline std::int64_t spread_of(std::int64_t width) {
  return width % 16 == 0 ? 16 : width % 4 == 0 ? 4 : 1;
}

}  // namespace qkv
