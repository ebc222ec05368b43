// Tiles of 64 x 64 pairs by 256 threads in f32: what the general attention kernels are made of.
// A thread has 4 x 4 pairs: rows 4 ty .. and columns 4 tx .., so that a row's 64 pairs are with 16
// neighbouring lanes.
#pragma once

#include "cuda/attention_job.cuh"

namespace qkv::cuda {

inline constexpr int kTile = 64, kDepth = 16, kSide = 4;
inline constexpr int kPitch = kTile + 4;  // of a tile in shared memory: rows 16-byte aligned

struct ProductRoom {
  float left[kDepth][kPitch], right[kDepth][kPitch];
};
using Tile = float[kSide][kSide];

struct Lane {
  int ty = static_cast<int>(threadIdx.x) / 16, tx = static_cast<int>(threadIdx.x) % 16;
  __device__ int row(int r) const { return kSide * ty + r; }
  __device__ int column(int c) const { return kSide * tx + c; }
};

// 64 rows of one head, from `first` on; rows at `count` and beyond are zeros.
template <class T>
struct RowBlock {
  const T* data;
  std::int64_t row, element;  // strides
  std::int64_t count;
};
template <class T>
__device__ RowBlock<T> block_of(const Rows& x, std::int64_t batch, std::int64_t head,
                                std::int64_t start, std::int64_t first, std::int64_t rows) {
  return {x.at<const T>(batch, head, start + first), x.row, x.element, rows - first};
}

template <class T>
__device__ void load_depth(const RowBlock<T>& x, int depth, int size, float (&to)[kDepth][kPitch]) {
  for (int n = 0; n < kTile * kDepth / kThreads; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * kThreads;
    const int row = e / kDepth, d = e % kDepth;
    const bool inside = row < x.count && depth + d < size;
    to[d][row] = inside ? to_float(x.data[row * x.row + (depth + d) * x.element]) : 0.0f;
  }
}

// t = left right^T over `size` elements.
template <class T>
__device__ void product(const RowBlock<T>& left, const RowBlock<T>& right, int size,
                        ProductRoom& room, Tile& t) {
  const Lane lane;
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < kSide; ++c) t[r][c] = 0;
  }
  for (int depth = 0; depth < size; depth += kDepth) {
    __syncthreads();
    load_depth(left, depth, size, room.left);
    load_depth(right, depth, size, room.right);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const float4 x = *reinterpret_cast<const float4*>(&room.left[d][lane.row(0)]);
      const float4 y = *reinterpret_cast<const float4*>(&room.right[d][lane.column(0)]);
      const float a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
      for (int r = 0; r < kSide; ++r) {
        for (int c = 0; c < kSide; ++c) t[r][c] = fmaf(a[r], b[c], t[r][c]);
      }
    }
  }
}

// Over the 16 lanes that share a row.
__device__ inline float row_max(float x) {
  for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ inline float row_sum(float x) {
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The weight of a pair that is hidden. Where a value beside it is not finite it must not be felt,
// and -0 is what no visible weight is.
inline constexpr float kHidden = -0.0f;
__device__ inline bool is_hidden(float weight) { return __float_as_uint(weight) == 0x80000000u; }

// Room for sums[out][column] += sum over m of weights[m][out] * values[m][column], 64 of each m and
// out, and 16 * kWide columns.
template <int kWide>
struct SumRoom {
  float weights[kTile][kPitch];
  float values[kTile][16 * kWide + 4];
};
template <int kWide>
using Sums = float[kSide][kWide];

// Values [64, 16 kWide] from column `first` on. True when one of them is not finite.
template <int kWide, class T>
__device__ bool load_values(const RowBlock<T>& x, int first, int size, SumRoom<kWide>& room) {
  constexpr int kColumns = 16 * kWide;
  bool strange = false;
  for (int n = 0; n < kTile * kColumns / kThreads; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * kThreads;
    const int row = e / kColumns, column = e % kColumns;
    const bool inside = row < x.count && first + column < size;
    const float value =
        inside ? to_float(x.data[row * x.row + (first + column) * x.element]) : 0.0f;
    strange |= !isfinite(value);
    room.values[row][column] = value;
  }
  return __syncthreads_or(strange) != 0;
}

// Weights and values are in the room, and everybody has seen a barrier since.
template <int kWide>
__device__ void add_product(const SumRoom<kWide>& room, bool strange, Sums<kWide>& sums) {
  const Lane lane;
#pragma unroll 4
  for (int m = 0; m < kTile; ++m) {
    const float4 x = *reinterpret_cast<const float4*>(&room.weights[m][lane.row(0)]);
    const float w[4] = {x.x, x.y, x.z, x.w};
    for (int part = 0; part < kWide / 4; ++part) {
      // Columns 4 tx + 64 part: neighbouring lanes read neighbouring words.
      const float4 y =
          *reinterpret_cast<const float4*>(&room.values[m][kSide * lane.tx + kTile * part]);
      const float v[4] = {y.x, y.y, y.z, y.w};
      for (int r = 0; r < kSide; ++r) {
        if (strange && is_hidden(w[r])) continue;
        for (int c = 0; c < 4; ++c) {
          sums[r][4 * part + c] = fmaf(w[r], v[c], sums[r][4 * part + c]);
        }
      }
    }
  }
}
// Where element [r][k] of Sums lies among the columns.
__device__ inline int sum_column(const Lane& lane, int k) {
  return kSide * lane.tx + kTile * (k / 4) + k % 4;
}

}  // namespace qkv::cuda
