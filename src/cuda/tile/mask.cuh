// Who sees whom, as intervals: every row sees keys [begin, end). Causal masks, windows and key
// lengths are all of that form (docs/attention.md), so a block of rows knows which tiles of keys
// nobody sees, which everybody sees, and which need a look at each pair.
#pragma once

#include <algorithm>

namespace qkv::cuda {

struct KeyRange {  // of keys, of tiles of them, or, seen from a key, of rows
  int begin, end;
};

// Unbounded sides are kUnbounded: far, yet safe to add to a row number.
inline constexpr int kUnbounded = 1 << 29;

struct Sight {
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

// Hides what a thread's two rows do not see in accumulators (wgmma.cuh) of keys key0, ...
template <int Count>
__device__ void hide(float (&s)[Count], const KeyRange (&seen)[2], int key0, float hidden) {
  const int column = key0 + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seen[r].begin - column, end = seen[r].end - column;
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = 2 * i + e;  // 8 columns in every 4 registers
        if (key < begin || key >= end) s[i + 2 * r + e] = hidden;
      }
    }
  }
}

}  // namespace qkv::cuda
