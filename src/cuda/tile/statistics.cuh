// What a softmax can tell about its scores while they pass (qkv/attention.h says what each number
// is), and the sums of it that blocks leave behind.
#pragma once

#include <cstdint>

#include "cuda/tile/softmax.cuh"

namespace qkv::cuda {

// Sums over the seeing rows of one warp. Moments as count, mean and sum of squared deviations.
struct WarpSums {
  float max_logit, pairs, mean, deviation;
  float rows, entropy, entropy_relative, saturated;
};

__device__ inline float rows_sum(float x) {  // over the 8 quads of a warp
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}

// What a row tells when it is done.
struct RowTold {
  float entropy = 0, top_weight = 0, total = 0, squares = 0;
  int top_key = -1;
};

// No score: those are larger. Finite, so that a weight of 0 times it is 0, while the scale is at
// most kLargestWatchedScale.
inline constexpr float kHiddenScore = -1e37f, kLargestWatchedScale = 16;

// Watches the thread's two rows. `top_key` is the same in the quad, sums are the lane's own part
// until `finish`. Scores are those of the product: times `unit` they are the user's. Without
// FindsKeys, `top_key` is not looked for, and takes no registers.
template <bool FindsKeys>
struct ScoreWatch {
  int top_key[2] = {-1, -1};
  float weighted[2] = {0, 0};  // sum of p log2(p), p being weights before the division
  float total[2] = {0, 0}, squares[2] = {0, 0};
  int key0 = 0;         // of the tile that comes next
  bool masked = false;  // whether it has hidden pairs

  __device__ static float known(float largest) {
    return largest <= kHiddenScore ? -kInfinity : largest;
  }

  // Moments of a tile's scores: two by two where all of them count.
  __device__ bool counts() const { return !masked; }
  __device__ void count(int r, float first, float second) {
    total[r] += first + second;
    squares[r] = fmaf(first, first, fmaf(second, second, squares[r]));
  }
  template <int Count>
  __device__ void count_carefully(const float (&s)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float x = s[i] <= kHiddenScore ? 0.f : s[i];
      total[i / 2 % 2] += x;
      squares[i / 2 % 2] = fmaf(x, x, squares[i / 2 % 2]);
    }
  }
  // Of a tile's scores, whose largest of each row are `largest`; `top` was the largest before.
  template <int Count>
  __device__ void find_keys(const float (&s)[Count], const float (&largest)[2],
                            const float (&top)[2]) {
    if constexpr (FindsKeys) {
      // Tiles come from the last to the first: the smallest key of equals is found last.
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool higher = largest[r] > -kInfinity && largest[r] >= top[r];
        if (!__any_sync(0xffffffff, higher)) continue;
        int first = Count;
#pragma unroll
        for (int i = Count - 4; i >= 0; i -= 4) {
          if (s[i + 2 * r + 1] == largest[r]) first = i + 1;
          if (s[i + 2 * r] == largest[r]) first = i;
        }
        // Register i + e of a row holds key 2 i + 2 (lane % 4) + e.
        int key = first == Count ? INT32_MAX : first / 4 * 8 + first % 4 + threadIdx.x % 4 * 2;
        key = min(key, __shfl_xor_sync(0xffffffff, key, 1));
        key = min(key, __shfl_xor_sync(0xffffffff, key, 2));
        if (higher) top_key[r] = key0 + key;
      }
    }
  }
  // Weights so far are multiplied by `factor` = 2^-distance.
  __device__ void rescale(int r, float factor, float distance, float sum) {
    weighted[r] = sum == 0 ? 0.f : factor * (weighted[r] - distance * sum);
  }
  __device__ void weigh(int r, float exponent, float weight) {
    weighted[r] = fmaf(exponent, weight, weighted[r]);
  }

  __device__ void finish(int r, float sum, RowTold& told) const {
    told.total = quad_sum(total[r]);
    told.squares = quad_sum(squares[r]);
    const float entropy = (log2f(sum) - quad_sum(weighted[r]) / sum) * kLn2;
    told.entropy = entropy < 0 ? 0.f : entropy;  // NaN stays
    told.top_key = top_key[r];
  }
};

// All rows of the warp together. `visible` counts the keys that rows see, 0 for rows left out;
// `top_score` is their largest score.
__device__ inline WarpSums sum_rows(const RowTold (&rows)[2], const float (&top_score)[2],
                                    const int (&visible)[2], float unit) {
  const bool one = threadIdx.x % 4 == 0;  // of each quad
  float n = 0, total = 0, seeing = 0, entropy = 0, relative = 0, saturated = 0;
  float top = -kInfinity;
  bool unknown = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (visible[r] == 0 || !one) continue;
    n += float(visible[r]);
    total += rows[r].total * unit;
    seeing += 1;
    entropy += rows[r].entropy;
    relative += visible[r] > 1 ? rows[r].entropy / logf(float(visible[r])) : 0.f;
    saturated += rows[r].top_weight > 0.99f ? 1.f : 0.f;
    top = fmaxf(top, top_score[r]);
    unknown |= top_score[r] != top_score[r];
  }
  WarpSums sums;
  sums.pairs = rows_sum(quad_sum(n));
  sums.mean = sums.pairs > 0 ? rows_sum(quad_sum(total)) / sums.pairs : 0.f;
  float deviation = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (visible[r] == 0 || !one) continue;
    const float mean = rows[r].total * unit / float(visible[r]);
    deviation += fmaxf(rows[r].squares * unit * unit - mean * mean * float(visible[r]), 0.f) +
                 float(visible[r]) * (mean - sums.mean) * (mean - sums.mean);
  }
  sums.deviation = rows_sum(quad_sum(deviation));
  sums.rows = rows_sum(quad_sum(seeing));
  sums.entropy = rows_sum(quad_sum(entropy));
  sums.entropy_relative = rows_sum(quad_sum(relative));
  sums.saturated = rows_sum(quad_sum(saturated));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
  sums.max_logit = __any_sync(0xffffffff, unknown) ? NAN : top * unit;
  return sums;
}

}  // namespace qkv::cuda
