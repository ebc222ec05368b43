// Which axes a sum runs over, in as few axes as possible.
#pragma once

#include <array>
#include <cstdint>

#include "qkv/tensor.h"

namespace qkv::cpu {

// The axes of x, those of extent 1 left out and neighbours joined where both are kept or both are
// summed over and they lie as one.
struct SumAxes {
  int rank = 0;
  std::array<std::int64_t, kMaxRank + 1> extents{}, strides{};
  std::array<bool, kMaxRank + 1> summed{};

  void take(std::int64_t extent, std::int64_t stride, bool is_summed) {
    if (extent == 1) return;
    const int last = rank - 1;
    if (rank > 0 && summed[last] == is_summed && strides[last] == stride * extent) {
      extents[last] *= extent;
      strides[last] = stride;
      return;
    }
    extents[rank] = extent;
    strides[rank] = stride;
    summed[rank++] = is_summed;
  }
  // The offset of element `index` among the axes before `end` that are (not) summed over.
  std::int64_t offset(std::int64_t index, bool is_summed, int end) const {
    std::int64_t at = 0;
    for (int axis = end - 1; axis >= 0; --axis) {
      if (summed[axis] != is_summed) continue;
      at += index % extents[axis] * strides[axis];
      index /= extents[axis];
    }
    return at;
  }
  std::int64_t count(bool is_summed, int end) const {
    std::int64_t n = 1;
    for (int axis = 0; axis < end; ++axis) n *= summed[axis] == is_summed ? extents[axis] : 1;
    return n;
  }
};

}  // namespace qkv::cpu
