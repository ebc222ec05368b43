// Tiles and products of a warp on f32 operands rounded to TF32 (8 bits of exponent, 10 of
// mantissa), D[16, 8] += A[16, 8] B[8, 8]. What is summed over may be taken in any order as long as
// A and B agree, and so may the columns of D; both are chosen here so that every operand is read 16
// bytes at a time, and so that accumulators are the next product's A where they lie.
#pragma once

#include "cuda/tile/warp_tile.cuh"

namespace qkv::cuda {

// To the nearest; NaN stays NaN. Ties to even are one instruction from Hopper on, ties away from 0
// two everywhere.
__device__ inline std::uint32_t to_tf32(float x) {
  std::uint32_t y;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#endif
  return y;
}
// Whether rounding leaves a number that 0 times it is 0.
__device__ inline bool is_tame(float x) { return fabsf(x) < 0x1.ffep127f; }
__device__ inline bool all_tame(const float4& x) {
  return is_tame(x.x) && is_tame(x.y) && is_tame(x.z) && is_tame(x.w);
}

using LeftOperand = std::uint32_t[4];
__device__ inline void multiply(float (&d)[4], const LeftOperand& a, std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows of kSize floats in shared memory, kSize a multiple of 32. Vectors of 16 bytes change places
// within 128 bytes, by the number of their row: then the 8 lanes that are served at once find all
// banks, whether they read four vectors of two neighbouring rows (`left`, `right`) or two of four
// even or odd ones (`values`).
template <int kSize>
struct WarpTile<float, kSize> {
  static constexpr int kVectors = kSize / 4;
  float* data;

  __device__ static int swizzle(int row) { return ((row ^ row >> 2) & 1) << 2 | (row & 2); }
  __device__ float4* vector(int row, int v) const {
    return reinterpret_cast<float4*>(data + row * kSize + (v ^ swizzle(row)) * 4);
  }
  // kRows rows of `size` floats, `apart` from each other; zeros beyond `size`, and in the place of
  // rows at `count` and beyond.
  template <int kRows, int kThreads>
  __device__ void load(const float* from, std::int64_t apart, int count, int size) const {
    share_vectors<kRows, kVectors, kThreads>([&](int row, int v) {
      const bool present = row < count && 4 * v < size;
      copy_later(vector(row, v), present ? from + row * apart + 4 * v : from, present);
    });
  }
  // Rounds, and puts rows r and r + 8 of every 16 together, two columns of each in a vector: an
  // operand of `left` is then one vector, in registers side by side as the instruction wants them.
  template <int kRows, int kThreads>
  __device__ void pack_left() const {
    share_vectors<kRows / 2, kVectors, kThreads>([&](int pair, int v) {
      const int row = pair / 8 * 16 + pair % 8;
      const float4 x = *vector(row, v), y = *vector(row + 8, v);
      auto* const to = reinterpret_cast<uint4*>(vector(row, v));
      auto* const next = reinterpret_cast<uint4*>(vector(row + 8, v));
      *to = {to_tf32(x.x), to_tf32(y.x), to_tf32(x.y), to_tf32(y.y)};
      *next = {to_tf32(x.z), to_tf32(y.z), to_tf32(x.w), to_tf32(y.w)};
    });
  }
  // Whether what this thread has loaded is all tame.
  template <int kRows, int kThreads>
  __device__ bool is_all_tame() const {
    bool tame = true;
    share_vectors<kRows, kVectors, kThreads>(
        [&](int row, int v) { tame &= all_tame(*vector(row, v)); });
    return tame;
  }
  // Zeros in the place of NaN and Inf, and the largest there is in that of what would become Inf.
  template <int kRows, int kThreads>
  __device__ void clean() const {
    constexpr float kMost = 0x1.ffcp127f;
    const auto cleaned = [](float x) {
      return isfinite(x) ? fminf(fmaxf(x, -kMost), kMost) : 0.0f;
    };
    share_vectors<kRows, kVectors, kThreads>([&](int row, int v) {
      float4& x = *vector(row, v);
      x = {cleaned(x.x), cleaned(x.y), cleaned(x.z), cleaned(x.w)};
    });
  }
};

// Where a lane reads in such tiles. Columns are taken 16 at a time, two instructions' worth: of
// columns 16 c .. the lane has the four from 4 (lane % 4) on.
template <int kSize>
struct LaneReader<float, kSize> {
  using Tile = WarpTile<float, kSize>;

  int rows[2];    // of row lane / 4: columns 16 c with even c, and with odd c
  int values[2];  // of columns 4 (lane / 4): row 2 (lane % 4), and the next

  __device__ LaneReader() {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    for (int odd = 0; odd < 2; ++odd) {
      rows[odd] = g * kSize + ((4 * odd + t) ^ Tile::swizzle(g)) * 4;
      const int row = 2 * t + odd;
      values[odd] = row * kSize + (g ^ Tile::swizzle(row)) * 4;
    }
  }
  // Rows [row, row + 16), columns 16 c .., of a packed tile.
  __device__ void left(const Tile& tile, int row, int c, LeftOperand (&to)[2]) const {
    const float* const at = tile.data + row * kSize + c / 2 * 32 + rows[c % 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 x = *reinterpret_cast<const uint4*>(at + 8 * half * kSize);
      to[half][0] = x.x, to[half][1] = x.y, to[half][2] = x.z, to[half][3] = x.w;
    }
  }
  // Rows [row, row + 8) as columns of the result.
  __device__ void right(const Tile& tile, int row, int c, std::uint32_t (&to)[4]) const {
    round(tile.data + row * kSize + c / 2 * 32 + rows[c % 2], to);
  }
  // Rows [row, row + 8), to be summed over; columns 32 c + 4 n + i for n < 8 and each i of 4
  // results. even[i] and odd[i] are the operands of result i.
  __device__ void sums(const Tile& tile, int row, int c, std::uint32_t (&even)[4],
                       std::uint32_t (&odd)[4]) const {
    const float* const at = tile.data + row * kSize + 32 * c;
    round(at + values[0], even);
    round(at + values[1], odd);
  }
  // Of the kSize / 4 sums that a lane has of a row: where the n-th lies among the accumulators of
  // its block (that of the other row is two further on), and its column.
  __device__ static int sum_index(int n) { return n / 8 * 16 + n % 4 * 4 + n / 4 % 2; }
  __device__ static int sum_column(int n) {
    return n / 8 * 32 + 8 * (static_cast<int>(threadIdx.x) % 4) + n % 8;
  }

 private:
  __device__ static void round(const float* at, std::uint32_t (&to)[4]) {
    const float4 x = *reinterpret_cast<const float4*>(at);
    to[0] = to_tf32(x.x), to[1] = to_tf32(x.y), to[2] = to_tf32(x.z), to[3] = to_tf32(x.w);
  }
};

__device__ inline float (&four(float* of))[4] { return *reinterpret_cast<float(*)[4]>(of); }

// to += rows [first, first + 16 kBlocks) of `left` times those of `right`, kColumns of them, over
// columns [16 c, 16 c + 16). Instructions that add to the same accumulators wait for one another,
// so those of all others come in between.
template <int kBlocks, int kColumns, int kSize>
__device__ void multiply_rows(const LaneReader<float, kSize>& lane, int c,
                              const WarpTile<float, kSize>& left, int first,
                              const WarpTile<float, kSize>& right,
                              Accumulators<kBlocks, kColumns>& to) {
  constexpr int kGroup = 4;
  LeftOperand a[kBlocks][2];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) lane.left(left, first + 16 * m, c, a[m]);
#pragma unroll
  for (int group = 0; group < kColumns / 8; group += kGroup) {
    std::uint32_t b[kGroup][4];
#pragma unroll
    for (int n = 0; n < kGroup; ++n) lane.right(right, 8 * (group + n), c, b[n]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply(four(&to[m][4 * (group + n)]), a[m][half], b[n][2 * half], b[n][2 * half + 1]);
        }
      }
    }
  }
}
// sums += weights [16 kBlocks, kColumns] times rows [0, kColumns) of `values`. Column 2 t of 8
// weights, which lane t of a row's four holds, is the t-th the instruction sums over, and 2 t + 1
// the (t + 4)-th.
template <int kBlocks, int kColumns, int kSize>
__device__ void add_products(const LaneReader<float, kSize>& lane,
                             const Accumulators<kBlocks, kColumns>& weights,
                             const WarpTile<float, kSize>& values, int /*size*/,
                             Accumulators<kBlocks, kSize>& sums) {
#pragma unroll
  for (int k = 0; k < kColumns / 8; ++k) {
    LeftOperand a[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const float* const w = &weights[m][4 * k];
      a[m][0] = to_tf32(w[0]), a[m][1] = to_tf32(w[2]);
      a[m][2] = to_tf32(w[1]), a[m][3] = to_tf32(w[3]);
    }
#pragma unroll
    for (int c = 0; c < kSize / 32; ++c) {
      std::uint32_t even[4], odd[4];
      lane.sums(values, 8 * k, c, even, odd);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply(four(&sums[m][4 * (4 * c + i)]), a[m], even[i], odd[i]);
        }
      }
    }
  }
}

// Such sums of one row of the lane (half 0 or 1) times `factor`, to `row`, which has `size`
// columns.
template <class T, int kSize>
requires(sizeof(T) == 4) __device__
    void store_sums(const float (&sums)[kSize / 2], int half, float factor, T* row, int size) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int c = 0; c < kSize / 32; ++c) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 32 * c + 8 * t + 4 * e;
      const float* const from = &sums[16 * c + 2 * half + e];
      if (column < size) {
        *reinterpret_cast<float4*>(row + column) = {factor * from[0], factor * from[4],
                                                    factor * from[8], factor * from[12]};
      }
    }
  }
}

}  // namespace qkv::cuda
