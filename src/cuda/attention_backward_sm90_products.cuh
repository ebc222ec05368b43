// What the warpgroups of the backward pass do with one step of rows: see
// attention_backward_sm90.cuh. Scores and what is made of them stand with keys as rows: a warpgroup
// has 64 keys, and a lane, of every 8 query rows, rows 2 (lane % 4) and the next.
#pragma once

#include "cuda/attention_backward_sm90_pairs.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::backward_sm90 {

// [64 keys, Rows] = keys rows^T, where `keys` is K or V and `rows` is Q or dO.
template <class S>
__device__ void issue_scores(const typename S::T* keys, const typename S::T* rows,
                             float (&to)[S::Rows / 2]) {
  const TileDescriptor a(keys, 0), b(rows, 0);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::D / 16; ++i) {
    const int slab = i / 4, within = i % 4 * 32;
    wgmma<typename S::T, inner, inner>(to, a.at(slab * S::Keys * 128 + within),
                                       b.at(slab * S::Rows * 128 + within), i > 0);
  }
  wgmma_commit();
}

// [64 keys, D] += a rows, where `a` is P^T or dS^T and `rows` is dO or Q.
template <class S>
__device__ void issue_gradient(float (&to)[S::D / 2], const std::uint32_t (&a)[S::Rows / 16][4],
                               const typename S::T* rows) {
  const TileDescriptor b(rows, S::Rows * 128);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::Rows / 16; ++i)
    wgmma<typename S::T, outer>(to, a[i], b.at(i * 16 * 128), 1);
  wgmma_commit();
}

// Rows that see all of `keys` keys from `key` on, and so need no mask there.
__device__ inline KeyRange rows_seeing_all(const BandMask& band, int key, int keys, int seeing) {
  const KeyRange of_last = band.rows_of(key + keys - 1, seeing);
  return {of_last.begin, of_last.end > 0 ? band.rows_of(key, seeing).end : 0};
}

// Two rows' {lse, r} at a time.
__device__ inline const float4* terms_of_lane(const RowTerms* terms) {
  return reinterpret_cast<const float4*>(terms) + threadIdx.x % 4;
}

// P^T from S^T. Under a bias, scores are taken less their rows' tops first.
template <class S>
__device__ void exponentiate(float (&s)[S::Rows / 2], const RowTerms* terms, const float* tops,
                             float scale) {
  const float4* const of_lane = terms_of_lane(terms);
#pragma unroll
  for (int n = 0; n < S::Rows / 8; ++n) {
    const float4 two = of_lane[4 * n];
    if constexpr (S::Biased) {
      const float2 top = reinterpret_cast<const float2*>(tops)[4 * n + threadIdx.x % 4];
      s[4 * n + 0] -= top.x;
      s[4 * n + 1] -= top.y;
      s[4 * n + 2] -= top.x;
      s[4 * n + 3] -= top.y;
    }
    s[4 * n + 0] = exp2_fast(fmaf(s[4 * n + 0], scale, -two.x));
    s[4 * n + 1] = exp2_fast(fmaf(s[4 * n + 1], scale, -two.z));
    s[4 * n + 2] = exp2_fast(fmaf(s[4 * n + 2], scale, -two.x));
    s[4 * n + 3] = exp2_fast(fmaf(s[4 * n + 3], scale, -two.z));
  }
}

// dS^T from P^T and dP^T, in place of dP^T. `per_cap` is what makes exponents those of a tanh.
template <class S>
__device__ void differentiate(float (&dp)[S::Rows / 2], const float (&weights)[S::Rows / 2],
                              const RowTerms* terms, float per_cap = 0) {
  const float4* const of_lane = terms_of_lane(terms);
#pragma unroll
  for (int n = 0; n < S::Rows / 8; ++n) {
    const float4 two = of_lane[4 * n];
    dp[4 * n + 0] = weights[4 * n + 0] * (dp[4 * n + 0] - two.y);
    dp[4 * n + 1] = weights[4 * n + 1] * (dp[4 * n + 1] - two.w);
    dp[4 * n + 2] = weights[4 * n + 2] * (dp[4 * n + 2] - two.y);
    dp[4 * n + 3] = weights[4 * n + 3] * (dp[4 * n + 3] - two.w);
    if constexpr (S::Softcap) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dp[4 * n + i] =
            uncap(dp[4 * n + i], weights[4 * n + i], i % 2 == 0 ? two.x : two.z, per_cap);
    }
  }
}

// The same under dropout, less the factor of what is kept: P dropped times dP, less P times r.
template <class S>
__device__ void differentiate_dropped(float (&dp)[S::Rows / 2],
                                      const std::uint32_t (&weights)[S::Rows / 16][4],
                                      const std::uint32_t (&dropped)[S::Rows / 16][4],
                                      const RowTerms* terms) {
  using T = typename S::T;
  const float4* const of_lane = terms_of_lane(terms);
#pragma unroll
  for (int n = 0; n < S::Rows / 8; ++n) {
    const float4 two = of_lane[4 * n];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float whole[2], kept[2];
      unpack<T>(weights[n / 2][n % 2 * 2 + r], whole[0], whole[1]);
      unpack<T>(dropped[n / 2][n % 2 * 2 + r], kept[0], kept[1]);
      float* const x = dp + 4 * n + 2 * r;
      x[0] = fmaf(kept[0], x[0], -two.y * whole[0]);
      x[1] = fmaf(kept[1], x[1], -two.w * whole[1]);
    }
  }
}

// dK or dV of the 16 keys of a warp, from `warp_key` on.
template <class S>
__device__ void store_gradient(const Work& work, void* data, const Sm90Strides& strides,
                               int head_size, const float (&gradient)[S::D / 2], int warp_key,
                               float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = warp_key + threadIdx.x % 32 / 4 + 8 * r;
    auto* const row = static_cast<typename S::T*>(data) + work.k_batch * strides.batch +
                      work.key_head * strides.head +
                      std::int64_t(work.k_start + work.key0 + key) * strides.row;
    store_row(row, key < work.keys, head_size, gradient, r, scale, false);
  }
}

}  // namespace qkv::cuda::backward_sm90
