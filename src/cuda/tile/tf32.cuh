// Products of a warp on floats that are rounded to TF32 (tile/floats.cuh).
#pragma once

#include "cuda/tile/floats.cuh"

namespace qkv::cuda {

// to += rows [first, first + 16 kBlocks) of `left` times those of `right`, kColumns of them, over
// columns [16 c, 16 c + 16). Instructions that add to the same accumulators wait for one another,
// so those of all others come in between.
template <int kBlocks, int kColumns, bool, int kSize>
__device__ void multiply_rows(const LaneReader<Tf32, kSize>& lane, int c,
                              const WarpTile<Tf32, kSize>& left, int first,
                              const WarpTile<Tf32, kSize>& right,
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
__device__ void add_products(const LaneReader<Tf32, kSize>& lane,
                             const Accumulators<kBlocks, kColumns>& weights,
                             const WarpTile<Tf32, kSize>& values, int /*size*/,
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

}  // namespace qkv::cuda
