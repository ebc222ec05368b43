// Accumulators (wgmma.cuh) to rows in memory, rounded to 16 bits: 16 bytes per lane at a time, or
// by way of shared memory, where the copy engine takes them.
#pragma once

#include <cstdint>

#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda {

// Of the four lanes of a quad, lane c gives part[j] to lane j and gets theirs for c: pieces of 4
// bytes of four vectors become one whole vector of 16 bytes in each lane.
__device__ inline uint4 quad_transpose(const std::uint32_t (&part)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  // Lanes 0 and 1, and 2 and 3, swap one column of each 2 x 2 block; then the blocks themselves.
  const std::uint32_t a = __shfl_xor_sync(0xffffffff, odd ? part[0] : part[1], 1);
  const std::uint32_t b = __shfl_xor_sync(0xffffffff, odd ? part[2] : part[3], 1);
  const std::uint32_t low[2] = {odd ? a : part[0], odd ? part[1] : a};
  const std::uint32_t high[2] = {odd ? b : part[2], odd ? part[3] : b};
  const std::uint32_t c = __shfl_xor_sync(0xffffffff, upper ? low[0] : high[0], 2);
  const std::uint32_t d = __shfl_xor_sync(0xffffffff, upper ? low[1] : high[1], 2);
  return upper ? uint4{c, d, high[0], high[1]} : uint4{low[0], low[1], c, d};
}

// The thread's row `r` (0 or 1) of accumulators times `factor`, or zeros, to `row`: `columns` of
// them, none where the row is not `present`. All lanes of a quad must come together.
template <class T, int Count>
__device__ void store_row(T* row, bool present, int columns, const float (&d)[Count], int r,
                          float factor, bool zero) {
#pragma unroll
  for (int block = 0; block < Count / 4; block += 4) {
    std::uint32_t part[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* const pair = &d[4 * (block + j) + 2 * r];
      part[j] = zero ? 0 : pack<T>(pair[0] * factor, pair[1] * factor);
    }
    const uint4 vector = quad_transpose(part);
    const int column = 8 * (block + threadIdx.x % 4);
    if (present && column < columns) *reinterpret_cast<uint4*>(row + column) = vector;
  }
}

// A warp's accumulators of [16, 2 Count] times a factor for each row, to a tile of its own in
// shared memory: slabs of [16][64], swizzled (tma.cuh).
template <class T, int Count>
__device__ void stage_rows(T* tile, const float (&d)[Count], const float (&factor)[2]) {
  // Lane l names a row of 16 bytes for the whole warp: row l % 8 of block l / 8 of four, which are
  // rows 0 to 7 and 8 to 15 of 8 columns, then of the next 8.
  const int lane = lane_now(), row = lane % 16, half = lane / 16;
  const std::uint32_t base = shared_address(tile) + 128 * row;
#pragma unroll
  for (int i = 0; i < Count / 8; ++i) {  // 16 columns
    const auto part = [&](int n, int r) {
      const float* const pair = &d[8 * i + 4 * n + 2 * r];
      return pack<T>(pair[0] * factor[r], pair[1] * factor[r]);
    };
    const int vector = 2 * i + half;  // of 16 bytes, along the row
    const std::uint32_t to = base + vector / 8 * (16 * 128) + (vector % 8 ^ row % 8) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(part(0, 0)), "r"(part(0, 1)), "r"(part(1, 0)), "r"(part(1, 1))
                 : "memory");
  }
}

}  // namespace qkv::cuda
