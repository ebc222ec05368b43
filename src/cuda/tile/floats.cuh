// Tiles of floats for a warp, and the instruction that multiplies them: of operands rounded to TF32
// (8 bits of exponent, 10 of mantissa), D[16, 8] += A[16, 8] B[8, 8]. What is summed over may be
// taken in any order as long as A and B agree, and so may the columns of D; both are chosen here so
// that every operand is read 16 bytes at a time, and so that accumulators are the next product's A
// where they lie. tf32.cuh multiplies what is rounded, exact.cuh what is not.
#pragma once

#include <concepts>

#include "cuda/tile/warp_tile.cuh"

namespace qkv::cuda {

// A float of a call that permits it to be rounded where it is multiplied.
struct Tf32 {
  float value;
};
__device__ inline float to_float(Tf32 x) { return x.value; }

template <class T>
concept Floats = std::same_as<T, float> || std::same_as<T, Tf32>;

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
// Whether two numbers of TF32 make it up: what is left of tiny ones is too small to have all bits.
__device__ inline bool splits_well(float x) {
  return is_tame(x) && !(fabsf(x) < 0x1p-100f && x != 0);
}
__device__ inline bool all_tame(const float4& x) {
  return is_tame(x.x) && is_tame(x.y) && is_tame(x.z) && is_tame(x.w);
}

// As tiles hand it out: rounded where it may be.
template <Floats T>
__device__ std::uint32_t operand(float x) {
  if constexpr (std::same_as<T, Tf32>) {
    return to_tf32(x);
  } else {
    return __float_as_uint(x);
  }
}

__device__ inline float as_float(std::uint32_t bits) { return __uint_as_float(bits); }

using LeftOperand = std::uint32_t[4];
__device__ inline void multiply(float (&d)[4], const LeftOperand& a, std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with d = 0 before.
__device__ inline void set_product(float (&d)[4], const LeftOperand& a, std::uint32_t b0,
                                   std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Rows of kSize floats in shared memory, kSize a multiple of 32. Vectors of 16 bytes change places
// within 128 bytes, by the number of their row: then the 8 lanes that are served at once find all
// banks, whether they read four vectors of two neighbouring rows (`left`, `right`) or two of four
// even or odd ones (`values`).
template <Floats T, int kSize>
struct WarpTile<T, kSize> {
  static constexpr int kVectors = kSize / 4;
  T* data;

  __device__ static int swizzle(int row) { return ((row ^ row >> 2) & 1) << 2 | (row & 2); }
  __device__ float4* vector(int row, int v) const {
    return reinterpret_cast<float4*>(data + row * kSize + (v ^ swizzle(row)) * 4);
  }
  // kRows rows of `size` floats, `apart` from each other; zeros beyond `size`, and in the place of
  // rows at `count` and beyond.
  template <int kRows, int kThreads>
  __device__ void load(const T* from, std::int64_t apart, int count, int size) const {
    share_vectors<kRows, kVectors, kThreads>([&](int row, int v) {
      const bool present = row < count && 4 * v < size;
      copy_later(vector(row, v), present ? from + row * apart + 4 * v : from, present);
    });
  }
  // Puts rows r and r + 8 of every 16 together, two columns of each in a vector: an operand of
  // `left` is then one vector, in registers side by side as the instruction wants them.
  template <int kRows, int kThreads>
  __device__ void pack_left() const {
    share_vectors<kRows / 2, kVectors, kThreads>([&](int pair, int v) {
      const int row = pair / 8 * 16 + pair % 8;
      const float4 x = *vector(row, v), y = *vector(row + 8, v);
      auto* const to = reinterpret_cast<uint4*>(vector(row, v));
      auto* const next = reinterpret_cast<uint4*>(vector(row + 8, v));
      *to = {operand<T>(x.x), operand<T>(y.x), operand<T>(x.y), operand<T>(y.y)};
      *next = {operand<T>(x.z), operand<T>(y.z), operand<T>(x.w), operand<T>(y.w)};
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
  // And whether it all splits well.
  template <int kRows, int kThreads>
  __device__ bool all_splits_well() const {
    bool well = true;
    share_vectors<kRows, kVectors, kThreads>([&](int row, int v) {
      const float4 x = *vector(row, v);
      well &= splits_well(x.x) && splits_well(x.y) && splits_well(x.z) && splits_well(x.w);
    });
    return well;
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
template <Floats T, int kSize>
struct LaneReader<T, kSize> {
  using Tile = WarpTile<T, kSize>;

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
    const T* const at = tile.data + row * kSize + c / 2 * 32 + rows[c % 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 x = *reinterpret_cast<const uint4*>(at + 8 * half * kSize);
      to[half][0] = x.x, to[half][1] = x.y, to[half][2] = x.z, to[half][3] = x.w;
    }
  }
  // Rows [row, row + 8) as columns of the result.
  __device__ void right(const Tile& tile, int row, int c, std::uint32_t (&to)[4]) const {
    read(tile.data + row * kSize + c / 2 * 32 + rows[c % 2], to);
  }
  // Rows [row, row + 8), to be summed over; columns 32 c + 4 n + i for n < 8 and each i of 4
  // results. even[i] and odd[i] are the operands of result i.
  __device__ void sums(const Tile& tile, int row, int c, std::uint32_t (&even)[4],
                       std::uint32_t (&odd)[4]) const {
    const T* const at = tile.data + row * kSize + 32 * c;
    read(at + values[0], even);
    read(at + values[1], odd);
  }
  // Of the kSize / 4 sums that a lane has of a row: where the n-th lies among the accumulators of
  // its block (that of the other row is two further on), and its column.
  __device__ static int sum_index(int n) { return n / 8 * 16 + n % 4 * 4 + n / 4 % 2; }
  __device__ static int sum_column(int n) {
    return n / 8 * 32 + 8 * (static_cast<int>(threadIdx.x) % 4) + n % 8;
  }

 private:
  __device__ static void read(const T* at, std::uint32_t (&to)[4]) {
    const float4 x = *reinterpret_cast<const float4*>(at);
    to[0] = operand<T>(x.x), to[1] = operand<T>(x.y);
    to[2] = operand<T>(x.z), to[3] = operand<T>(x.w);
  }
};

__device__ inline float (&four(float* of))[4] { return *reinterpret_cast<float(*)[4]>(of); }

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
