// How many rows of a Performer's queries and keys go through at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace qkv {

inline constexpr std::int64_t kFewestSegmentRows = 128;

// On a CPU: features of a segment stay in the cache. `elements` are those of a row's features, all
// heads together.
inline std::int64_t segment_rows_in_cache(std::int64_t elements) {
  constexpr std::int64_t kInCache = std::int64_t{1} << 19;
  return std::max(kFewestSegmentRows, kInCache / std::max<std::int64_t>(1, elements));
}

struct FeatureRows {
  std::int64_t rows = 0, bytes = 0;  // bytes of a row's features, all heads together
};

// On a GPU of `total` bytes of memory. No cache holds features that fill it with work, and each
// segment costs copies and launches, so a call goes through at once, and its features are there for
// the gradient, while they take at most a sixteenth of the memory. Beyond, a segment takes a
// quarter of that.
inline std::int64_t segment_rows_on_gpu(const FeatureRows& queries, const FeatureRows& keys,
                                        std::int64_t total) {
  const std::int64_t most = total / 16;
  const auto bytes = [&](std::int64_t rows) {
    return static_cast<double>(std::min(rows, queries.rows)) * static_cast<double>(queries.bytes) +
           static_cast<double>(std::min(rows, keys.rows)) * static_cast<double>(keys.bytes);
  };
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  if (bytes(kAll) <= static_cast<double>(most)) return kAll;
  const std::int64_t each = std::max<std::int64_t>(1, queries.bytes + keys.bytes);
  return std::max(kFewestSegmentRows, most / 4 / each);
}

}  // namespace qkv
