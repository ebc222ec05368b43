// What the kernels for short sequences share: a block is several groups of warps, a group has one
// head of one sequence, and each warp of it 16 rows.
#pragma once

#include "cuda/attention.h"
#include "cuda/attention_short.h"
#include "cuda/norm.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"

namespace qkv::cuda {

inline constexpr int kShort = 128;  // rows at most
inline constexpr int kTileRows = 16;

// Rows of kSize elements in shared memory, padded so that 8 of them lie in different banks.
template <class T, int kSize>
struct ShortTile {
  static constexpr int kPitch = kSize + 8;
  T* data;

  __device__ T* row(int i) const { return data + i * kPitch; }
  // Rows [0, rows) from global memory and zeros up to `padded`, by `threads` threads. True when one
  // of this thread's elements is not finite.
  __device__ bool load(const T* from, std::int64_t apart, int rows, int padded, int thread,
                       int threads) const {
    constexpr int kVectors = kSize / 8;
    bool strange = false;
    for (int e = thread; e < padded * kVectors; e += threads) {
      const int i = e / kVectors, d = e % kVectors * 8;
      const uint4 words =
          i < rows ? *reinterpret_cast<const uint4*>(from + i * apart + d) : uint4{};
      strange |= !all_finite<T>(words);
      *reinterpret_cast<uint4*>(row(i) + d) = words;
    }
    return strange;
  }
  // Zeros in place of what is not finite.
  __device__ void clean(int rows, int thread, int threads) const {
    constexpr int kVectors = kSize / 8;
    for (int e = thread; e < rows * kVectors; e += threads) {
      auto& words = *reinterpret_cast<uint4*>(row(e / kVectors) + e % kVectors * 8);
      words = only_finite<T>(words);
    }
  }
  // 16 rows from `first` on as the first operand of a product over columns 16 k ...
  __device__ void left(int first, int k, std::uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32;
    load_matrices(to, address(first + lane % 16, 16 * k + lane / 16 * 8));
  }
  // ... and, as columns, as the second: two halves of 8 for each pair of results.
  __device__ void right(int first, int k, std::uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32;
    load_matrices(to, address(first + lane / 16 * 8 + lane % 8, 16 * k + lane / 8 % 2 * 8));
  }
  // 16 rows from `first` on as the second operand of a product over the rows, columns 16 n ...
  __device__ void values(int first, int n, std::uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(to, address(first + lane % 16, 16 * n + lane / 16 * 8));
  }

 private:
  __device__ std::uint32_t address(int i, int d) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(row(i) + d));
  }
};

// Results of 16 x 16 pairs. Element [h][e] of lane l: row l / 4 + 8 (e / 2), column 8 h + 2 (l % 4)
// + e % 2.
using Pairs = float[2][4];
__device__ inline int pair_row(int e) { return static_cast<int>(threadIdx.x) % 32 / 4 + e / 2 * 8; }
__device__ inline int pair_column(int h, int e) {
  return 8 * h + 2 * (static_cast<int>(threadIdx.x) % 4) + e % 2;
}

// left [16, kSize] times the transposed rows [first, first + 16) of a tile.
template <class T, int kSize>
__device__ void multiply(const std::uint32_t (&left)[kSize / 16][4],
                         const ShortTile<T, kSize>& right, int first, Pairs& to) {
  for (auto& half : to) {
    for (float& x : half) x = 0;
  }
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) {
    std::uint32_t b[4];
    right.right(first, k, b);
    mma<T>(to[0], left[k], b[0], b[1]);
    mma<T>(to[1], left[k], b[2], b[3]);
  }
}

// Pairs as the first operand of a product over their columns.
template <class T>
__device__ void as_left(const Pairs& pairs, std::uint32_t (&to)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const T two[2] = {from_float<T>(pairs[e / 2][e % 2 * 2]),
                      from_float<T>(pairs[e / 2][e % 2 * 2 + 1])};
    to[e] = *reinterpret_cast<const std::uint32_t*>(two);
  }
}

// sums [16, kSize] += left [16, 16] times rows [first, first + 16) of a tile.
template <class T, int kSize>
__device__ void accumulate(const std::uint32_t (&left)[4], const ShortTile<T, kSize>& values,
                           int first, float (&sums)[kSize / 8][4]) {
#pragma unroll
  for (int n = 0; n < kSize / 16; ++n) {
    std::uint32_t b[4];
    values.values(first, n, b);
    mma<T>(sums[2 * n], left, b[0], b[1]);
    mma<T>(sums[2 * n + 1], left, b[2], b[3]);
  }
}

// factor * sums to rows of global memory; rows at `count` and beyond do not exist.
template <class T, int kSize>
__device__ void store_sums(const float (&sums)[kSize / 8][4], const float (&factor)[2], T* to,
                           std::int64_t apart, int count) {
#pragma unroll
  for (int n = 0; n < kSize / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = pair_row(2 * half);
      if (i >= count) continue;
      const T pair[2] = {from_float<T>(factor[half] * sums[n][2 * half]),
                         from_float<T>(factor[half] * sums[n][2 * half + 1])};
      *reinterpret_cast<std::uint32_t*>(to + i * apart + pair_column(n, 0)) =
          *reinterpret_cast<const std::uint32_t*>(pair);
    }
  }
}

// A group of warps and its work.
struct ShortGroup {
  int warps, warp, index, lane;  // of the group, within it, within the block
  int sequence = 0, head = 0;
  bool has_work;

  __device__ ShortGroup(const AttentionJob& job, int warps_each, unsigned sequences)
      : warps(warps_each), lane(threadIdx.x % 32) {
    const int all = static_cast<int>(threadIdx.x) / 32;
    warp = all % warps;
    index = all / warps;
    const std::int64_t groups = blockDim.x / 32 / warps;
    const std::int64_t pair = std::int64_t{blockIdx.x} * groups + index;
    has_work = pair < std::int64_t{sequences} * job.heads;
    if (has_work) {
      sequence = static_cast<int>(pair / job.heads);
      head = static_cast<int>(pair % job.heads);
    }
  }
  __device__ int thread() const { return warp * 32 + lane; }
  __device__ int threads() const { return warps * 32; }
};

// Of the lane's 16 x 16 pairs from query `first` and key `key` on: what the weight of element
// [h][e] is multiplied by, 0 where it is dropped.
__device__ inline void kept_pairs(const AttentionJob& job, const ShortGroup& group, int first,
                                  int key, Pairs& keep) {
  if (!job.has_dropout) {
    for (auto& half : keep) {
      for (float& x : half) x = 1;
    }
    return;
  }
  const bool second = key / 16 % 2 != 0;  // of 32 keys that share draws
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const uint4 words =
        job.dropout.draw(group.sequence, group.head, first + pair_row(0), key + pair_column(0, e));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t compared =
          job.dropout.compare(h == 0 ? (second ? words.z : words.x) : (second ? words.w : words.y));
      keep[h][e] = (compared & 0x8000) != 0 ? job.dropout.kept : 0.0f;
      keep[h][2 + e] = (compared & 0x80000000) != 0 ? job.dropout.kept : 0.0f;
    }
  }
}
__device__ inline float kept(const AttentionJob& job, const ShortGroup& group, int i, int j) {
  if (!job.has_dropout) return 1;
  return job.dropout.keeps(group.sequence, group.head, i, j) ? job.dropout.kept : 0.0f;
}

// Which keys query i sees: an interval, unless there is a mask of pairs or of positions.
struct VisibleKeys {
  int begin = 0, end = 0;

  __device__ VisibleKeys(const AttentionJob& job, const Sequence& s, int i) {
    if (i >= s.q_rows || i >= s.q_seeing) return;
    std::int64_t first = 0, last = min(s.k_rows, s.k_visible);
    if (is_interval(job)) {
      const std::int64_t position = i + s.offset;
      if (job.causal) last = min(last, position + 1);
      if (job.right >= 0) last = min(last, position + job.right + 1);
      if (job.left >= 0) first = max(first, position - job.left);
    }
    begin = static_cast<int>(min(first, std::int64_t{kShort}));
    end = static_cast<int>(max(last, std::int64_t{0}));
  }
  __device__ static bool is_interval(const AttentionJob& job) {
    return job.allowed.data == nullptr && !job.has_global();
  }
  __device__ bool sees(const AttentionJob& job, const Sequence& s, int head, int i, int j) const {
    if (j < begin || j >= end) return false;
    return is_interval(job) || is_visible(job, s, head, i, j);
  }
};
// The score of a pair that is seen, without bias.
__device__ inline float capped(const AttentionJob& job, float dot) {
  const float a = job.scale * dot;
  return job.softcap > 0 ? job.softcap * tanh_fast(a / job.softcap) : a;
}

// Sum over the elements of two rows, by a warp: for pairs that need care.
template <class T, int kSize>
__device__ float careful_dot(const T* a, const T* b) {
  float sum = 0;
  for (int d = threadIdx.x % 32; d < kSize; d += 32) sum += to_float(a[d]) * to_float(b[d]);
  return warp_sum(sum);
}

// Warps for the rows of the longest sequence: a power of two.
inline int short_warps(std::int64_t rows) {
  int warps = 1;
  while (warps * kTileRows < rows) warps *= 2;
  return warps;
}

}  // namespace qkv::cuda
