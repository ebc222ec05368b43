// How much of a picture fits into a page.
//
// A page holds numbers as base64, 4 bytes of text for 3 of data. Weights are 16 bits each. Where
// all of them take no more than half of the limit the page has all. A longer input gets, for every
// head, a square of pooled blocks, as fine as an eighth of the limit allows, and the largest
// weights of each row, as many as fit into half of it. Queries and keys, from which the page can
// compute any row itself, go to as many heads as the rest has room for, the chosen one first. The
// tokens alone are not bounded by the limit: they are what the text is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qkv/viewer.h"

namespace qkv::viewer {

inline constexpr std::int64_t kMostTop = 16;        // weights of a row, where not all are there
inline constexpr std::int64_t kMostPoolSide = 128;  // blocks along one side

inline std::size_t base64_size(std::size_t bytes) { return (bytes + 2) / 3 * 4; }

struct PagePlan {
  bool full = true;         // all weights
  std::int64_t side = 0;    // else: pooled blocks along a side,
  std::int64_t top = 0;     // and the largest weights of each row
  std::size_t vectors = 0;  // bytes left for queries and keys
};
PagePlan plan_page(const AttentionPicture& picture, std::size_t limit);

}  // namespace qkv::viewer
