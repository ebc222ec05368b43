// Products of a warp on floats that are not rounded. An operand is two of TF32, a big one and what
// it lacks, which together have all 24 bits but for the last one at times; a product is four.
//
// Instructions cut off, always towards 0, what is too small beside the sum they add to. So of every
// eight products the big ones and the small ones make sums of their own, and additions that round
// join them.
#pragma once

#include "cuda/tile/floats.cuh"

namespace qkv::cuda {

struct SplitWord {
  std::uint32_t big, small;

  SplitWord() = default;
  __device__ explicit SplitWord(float x) {
    big = to_tf32(x);
    small = to_tf32(x - __uint_as_float(big));
  }
};
struct SplitLeft {
  LeftOperand big, small;

  __device__ void set(int n, SplitWord x) { big[n] = x.big, small[n] = x.small; }
};

// sums(m, n) += (or `begins`: =) a[m] times what has rows b0[n] and b1[n], each sum of four floats.
// Whichever side is which, the bits are the same: of keys on the left the products of a big and a
// small one change places. Instructions that add to the same accumulators wait for one another, so
// those of all others come in between.
template <bool kOfKeys, int kBlocks, int kCount, class Sums>
__device__ __forceinline__ void multiply_split(const SplitLeft (&a)[kBlocks],
                                               const SplitWord (&b0)[kCount],
                                               const SplitWord (&b1)[kCount], bool begins,
                                               Sums sums) {
  float big[kBlocks][kCount][4], small[kBlocks][kCount][4];
  const auto each = [](auto&& visit) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) visit(m, n);
    }
  };
  const auto add_big_small = [&](int m, int n) {
    multiply(small[m][n], a[m].big, b0[n].small, b1[n].small);
  };
  const auto add_small_big = [&](int m, int n) {
    multiply(small[m][n], a[m].small, b0[n].big, b1[n].big);
  };
  each([&](int m, int n) { set_product(small[m][n], a[m].small, b0[n].small, b1[n].small); });
  each([&](int m, int n) { set_product(big[m][n], a[m].big, b0[n].big, b1[n].big); });
  if constexpr (kOfKeys) each(add_big_small);
  each(add_small_big);
  if constexpr (!kOfKeys) each(add_big_small);
  each([&](int m, int n) {
    float* const to = sums(m, n);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float eight = big[m][n][e] + small[m][n][e];
      to[e] = begins ? eight : to[e] + eight;
    }
  });
}

// As for the others (tf32.cuh), but columns from c = 0 on begin the sum.
template <int kBlocks, int kColumns, bool kOfKeys, int kSize>
__device__ void multiply_rows(const LaneReader<float, kSize>& lane, int c,
                              const WarpTile<float, kSize>& left, int first,
                              const WarpTile<float, kSize>& right,
                              Accumulators<kBlocks, kColumns>& to) {
  constexpr int kGroup = 4;
  SplitLeft a[2][kBlocks];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    LeftOperand whole[2];
    lane.left(left, first + 16 * m, c, whole);
#pragma unroll
    for (int e = 0; e < 8; ++e) a[e / 4][m].set(e % 4, SplitWord(as_float(whole[e / 4][e % 4])));
  }
#pragma unroll
  for (int group = 0; group < kColumns / 8; group += kGroup) {
    std::uint32_t b[kGroup][4];
#pragma unroll
    for (int n = 0; n < kGroup; ++n) lane.right(right, 8 * (group + n), c, b[n]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      SplitWord b0[kGroup], b1[kGroup];
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        b0[n] = SplitWord(as_float(b[n][2 * half]));
        b1[n] = SplitWord(as_float(b[n][2 * half + 1]));
      }
      multiply_split<kOfKeys>(a[half], b0, b1, c == 0 && half == 0,
                              [&](int m, int n) { return &to[m][4 * (group + n)]; });
    }
  }
}
template <int kBlocks, int kColumns, int kSize>
__device__ void add_products(const LaneReader<float, kSize>& lane,
                             const Accumulators<kBlocks, kColumns>& weights,
                             const WarpTile<float, kSize>& values, int /*size*/,
                             Accumulators<kBlocks, kSize>& sums) {
#pragma unroll
  for (int k = 0; k < kColumns / 8; ++k) {
    SplitLeft a[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const float* const w = &weights[m][4 * k];
      a[m].set(0, SplitWord(w[0])), a[m].set(1, SplitWord(w[2]));
      a[m].set(2, SplitWord(w[1])), a[m].set(3, SplitWord(w[3]));
    }
#pragma unroll
    for (int c = 0; c < kSize / 32; ++c) {
      std::uint32_t even[4], odd[4];
      lane.sums(values, 8 * k, c, even, odd);
      SplitWord b0[4], b1[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b0[i] = SplitWord(as_float(even[i]));
        b1[i] = SplitWord(as_float(odd[i]));
      }
      multiply_split<false>(a, b0, b1, false,
                            [&](int m, int i) { return &sums[m][4 * (4 * c + i)]; });
    }
  }
}

}  // namespace qkv::cuda
