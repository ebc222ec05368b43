// Who sees whom, as intervals: every row sees keys [begin, end). Causal masks, windows and key
// lengths are all of that form (docs/attention.md), so a block of rows knows which tiles of keys
// nobody sees, which everybody sees, and which need a look at each pair.
#pragma once

#include <algorithm>
#include <cstdint>

namespace qkv::cuda {

struct KeyRange {  // of keys, of tiles of them, or, seen from a key, of rows
  int begin, end;
};

// Unbounded sides are kUnbounded: far, yet safe to add to a row number.
inline constexpr int kUnbounded = 1 << 29;

struct BandMask {
  int left, right;  // row i sees keys i + offset - left .. i + offset + right ...
  int offset;
  int visible;  // ... of the first `visible`

  __host__ __device__ KeyRange of(int row) const {
    const int begin = row + offset - left, end = row + offset + right + 1;
    return {begin > 0 ? begin : 0, end < visible ? end : visible};
  }
  // The other way round: of the first `rows` rows, those that see `key`.
  __host__ __device__ KeyRange rows_of(int key, int rows) const {
    if (key >= visible) return {0, 0};
    const int begin = key - offset - right, end = key - offset + left + 1;
    return {begin > 0 ? begin : 0, end < rows ? end : rows};
  }
  // Of rows first .. last: what at least one of them sees, and what all of them see.
  __host__ __device__ KeyRange of_some(int first, int last) const {
    return {of(first).begin, of(last).end};
  }
  __host__ __device__ KeyRange of_all(int first, int last) const {
    return {of(last).begin, of(first).end};
  }
};

// Of the keys that a thread has of a row in accumulators (wgmma.cuh), two in every 8, those before
// `end`: bit n is key 8 (n / 2) + n % 2.
__device__ inline std::uint32_t keys_before(int end) {
  const int count = end <= 0 ? 0 : end / 8 * 2 + min(end % 8, 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// Visits the accumulators of keys key0, ... that a thread has of its two rows: `visit` gets each,
// with a word and the bit of it that says whether the row sees the key. A word tells of 32 keys,
// and its bits become predicates several at a time: two comparisons of each key cost more.
template <int Count, class Visit>
__device__ void visit_seen(float (&s)[Count], const KeyRange (&seen)[2], int key0, Visit visit) {
  constexpr int Bits = 32, Keys = 4 * Bits;  // 32 in each of the four lanes of a row
  const int column = key0 + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seen[r].begin - column, end = seen[r].end - column;
#pragma unroll
    for (int word = 0; word * Bits < Count / 2; ++word) {
      const std::uint32_t visible =
          keys_before(end - word * Keys) & ~keys_before(begin - word * Keys);
#pragma unroll
      for (int n = 0; n < Bits && word * Bits + n < Count / 2; ++n)
        visit(s[(word * Bits + n) / 2 * 4 + 2 * r + n % 2], visible, 1u << n);
    }
  }
}

// Hides what a thread's two rows do not see.
template <int Count>
__device__ void hide(float (&s)[Count], const KeyRange (&seen)[2], int key0, float hidden) {
  visit_seen(s, seen, key0, [&](float& x, std::uint32_t visible, std::uint32_t bit) {
    if ((visible & bit) == 0) x = hidden;
  });
}

}  // namespace qkv::cuda
