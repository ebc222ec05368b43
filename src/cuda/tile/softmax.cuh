// Softmax over rows that arrive tile by tile, on the accumulators of a [64, N] product.
//
// A thread holds parts of two rows (wgmma.cuh); the four lanes of a quad share them. `maximum` is
// the same in the quad, `sum` is the lane's own part until `finish`.
#pragma once

#include <cmath>

namespace qkv::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = INFINITY;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Within 1e-6 of tanh; the tanh instruction errs by 5e-4, too much once multiplied by a softcap.
// NaN stays NaN.
__device__ inline float tanh_fast(float x) {
  float exponent;
  asm("min.NaN.f32 %0, %1, 0f42A00000;" : "=f"(exponent) : "f"(2 * kLog2e * x));  // at most 80
  return 1 - __fdividef(2.f, exp2_fast(exponent) + 1);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Nobody watches the scores. ScoreWatch (statistics.cuh) says what there is to watch.
struct NoWatch {
  __device__ static float known(float largest) { return largest; }
  __device__ static bool counts() { return false; }
  __device__ void count(float) {}
  template <int Count>
  __device__ void find_keys(const float (&)[Count], const float (&)[2], const float (&)[2]) {}
  __device__ void rescale(int, float, float, float) {}
  __device__ void weigh(int, float, float) {}
};

struct OnlineSoftmax {
  // Weights are 2^(scale s - scale maximum). The maximum is left alone while scores stay within
  // 2^8 of it: what was summed up then needs no rescaling, and 2^8 overflows nothing.
  static constexpr float kSlack = 8;
  // Beyond this, scale * s loses so many bits that scale * s - scale * maximum could overflow.
  static constexpr float kExtreme = 1 << 20;

  float maximum[2] = {-kInfinity, -kInfinity};
  float top[2] = {-kInfinity, -kInfinity};  // the largest score there was, never below `maximum`
  float sum[2] = {0, 0};

  // Scores to weights. `factor` is what the earlier weights, and what was made of them, must be
  // multiplied by. Returns whether some lane of the warp has a factor other than 1.
  template <int Count, class Watch>
  __device__ bool step(float (&s)[Count], float scale, float (&factor)[2], Watch& watch) {
    float shift[2], largest_here[2];
    bool extreme = false, counts = watch.counts();
    largest_of_lane(s, largest_here);
#pragma unroll
    for (int r = 0; r < 2; ++r) largest_here[r] = Watch::known(quad_max(largest_here[r]));
    watch.find_keys(s, largest_here, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = top[r] = fmaxf(largest_here[r], top[r]);
      const bool keep = (largest - maximum[r]) * scale <= kSlack;
      if (keep) largest = maximum[r];
      // A row that has seen nothing has weights 2^(-inf - 0) = 0.
      const float reference = largest == -kInfinity ? 0.f : largest;
      factor[r] = keep ? 1.f : exp2_fast((maximum[r] - reference) * scale);
      if (!keep) watch.rescale(r, factor[r], (reference - maximum[r]) * scale, sum[r]);
      maximum[r] = largest;
      shift[r] = reference * scale;
      extreme |= fabsf(shift[r]) > kExtreme;
      sum[r] *= factor[r];
    }
    if (__any_sync(0xffffffff, extreme)) {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        if (counts) watch.count(s[i]);
        const float largest = maximum[i / 2 % 2];
        s[i] -= largest == -kInfinity ? 0.f : largest;
      }
      shift[0] = shift[1] = 0;
      counts = false;
    }
    if (counts)
      weigh<true>(s, scale, shift, watch);
    else
      weigh<false>(s, scale, shift, watch);
    return __any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1);
  }

  // The largest score of a row whose sum is whole. The sum knows of NaN, which a maximum does not.
  __device__ float largest_score(int r) const {
    return sum[r] != sum[r] && top[r] != kInfinity ? sum[r] : top[r];
  }
  // The rows' whole sums, and their natural log-sum-exp.
  __device__ void finish(float scale, float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      lse[r] = sum[r] == 0 ? -kInfinity : (maximum[r] * scale + log2f(sum[r])) * kLn2;
    }
  }

 private:
  // Four comparisons at a time that do not wait for one another.
  template <int Count>
  __device__ static void largest_of_lane(const float (&s)[Count], float (&largest)[2]) {
    float four[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < Count; ++i) four[i % 4] = fmaxf(four[i % 4], s[i]);
    largest[0] = fmaxf(four[0], four[1]);
    largest[1] = fmaxf(four[2], four[3]);
  }
  // Scores are counted here, beside exponentials, whose unit takes 8 cycles for those of a warp.
  template <bool Counts, int Count, class Watch>
  __device__ void weigh(float (&s)[Count], float scale, const float (&shift)[2], Watch& watch) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int r = i / 2 % 2;
      if (Counts) watch.count(s[i]);
      const float exponent = fmaf(s[i], scale, -shift[r]);
      s[i] = exp2_fast(exponent);
      sum[r] += s[i];
      watch.weigh(r, exponent, s[i]);
    }
  }
};

}  // namespace qkv::cuda
