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
// Also where what it is multiplied by is large: of small x all digits are right.
__device__ inline float tanh_close(float x) {
  const float y = x * x;
  const float series = fmaf(fmaf(fmaf(-17.f / 315, y, 2.f / 15), y, -1.f / 3), y, 1.f) * x;
  return fabsf(x) < 0.25f ? series : tanh_fast(x);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
// The largest of a, b and c as integers: the largest number of them if one of them is not negative,
// else some negative one. NaN counts as large. One instruction on Hopper, where fmaxf takes two.
__device__ inline float larger_if_positive(float a, float b, float c) {
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// A sink joins the sum of a row that sees something. Returns the row's lse; `share` is what its
// sums are multiplied by.
__device__ inline float with_sink(float sink, float lse, float& share) {
  const float top = fmaxf(lse, sink);
  const float both = top + logf(expf(lse - top) + expf(sink - top));
  share *= expf(lse - both);
  return both;
}

// The entropy of such a row, lse - sum p s over its keys, from that without the sink and both lse.
// `left` is what the sink leaves to keys.
__device__ inline float entropy_with_sink(float entropy, float left, float lse, float full_lse) {
  return left * entropy + (full_lse - lse) + (1 - left) * lse;
}

// Nobody watches the scores. ScoreWatch (statistics.cuh) and PairWatch (attention_mma_watch.cuh)
// say what there is to watch.
struct NoWatch {
  __device__ static constexpr bool finds_keys() { return false; }
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
  // Beyond this, scale * maximum is rounded by more than what a weight of 1 may differ from 1 by:
  // the maximum is subtracted first.
  static constexpr float kExtreme = 1 << 10;

  float maximum[2] = {-kInfinity, -kInfinity};
  // The largest score there was; the lane's own part until `finish`, but never below `maximum`.
  float top[2] = {-kInfinity, -kInfinity};
  float sum[2] = {0, 0};
  bool settled = false;  // no maximum of the warp is negative, or beyond kExtreme

  // Scores to weights. `factor` is what the earlier weights, and what was made of them, must be
  // multiplied by. Returns whether some lane of the warp has a factor other than 1.
  template <int Count, class Watch>
  __device__ bool step(float (&s)[Count], float scale, float (&factor)[2], Watch& watch) {
    float shift[2] = {maximum[0] * scale, maximum[1] * scale};
    bool counts = watch.counts(), moved = false;
    factor[0] = factor[1] = 1;
    if (watch.finds_keys() || !settled || !stays(s, scale))
      moved = move(s, scale, factor, shift, counts, watch);
    if (counts)
      weigh<true>(s, scale, shift, watch);
    else
      weigh<false>(s, scale, shift, watch);
    return moved;
  }

  // The exponent that `score` of a row of the thread had when it was summed up, rounded as it was:
  // scale * maximum errs by what a weight must not differ from the sum by. Called by whole warps.
  __device__ float exponent(float score, float row_maximum, float scale) const {
    bool extreme = false;  // as in `move`
#pragma unroll
    for (float x : maximum) extreme |= x != -kInfinity && fabsf(x * scale) > kExtreme;
    if (__any_sync(0xffffffff, extreme)) return (score - row_maximum) * scale;
    return fmaf(score, scale, -(row_maximum * scale));
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
      top[r] = quad_max(top[r]);
      // The approximate logarithm errs by 2^-22. The product is rounded, as it is in `weigh`.
      lse[r] = sum[r] == 0 ? -kInfinity : (__fmul_rn(maximum[r], scale) + __log2f(sum[r])) * kLn2;
    }
  }

 private:
  // Most tiles of most rows have no score that would move the maximum. Of a settled warp that is
  // seen with half the comparisons, and without an exchange between lanes.
  template <int Count>
  __device__ bool stays(const float (&s)[Count], float scale) {
    static_assert(Count % 8 == 0);
    float largest[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i + 4 < Count; i += 8) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
        largest[n] = larger_if_positive(largest[n], s[i + n], s[i + 4 + n]);
    }
    bool all_stay = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float& here = largest[2 * r];
      here = larger_if_positive(here, largest[2 * r + 1], s[Count - 4 + 2 * r]);
      here = larger_if_positive(here, s[Count - 4 + 2 * r + 1], here);
      all_stay &= (here - maximum[r]) * scale <= kSlack;  // false where something is NaN
    }
    if (!__all_sync(0xffffffff, all_stay)) return false;
    top[0] = fmaxf(top[0], largest[0]);  // which is not negative
    top[1] = fmaxf(top[1], largest[2]);
    return true;
  }
  // Moves the maximum where it must be, and `shift` = scale * maximum with it. Scores that would be
  // counted too late are counted here, and no longer `counts`.
  template <int Count, class Watch>
  __device__ bool move(float (&s)[Count], float scale, float (&factor)[2], float (&shift)[2],
                       bool& counts, Watch& watch) {
    float largest_here[2];
    bool extreme = false;
    largest_of_lane(s, largest_here);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!watch.finds_keys()) largest_here[r] = fmaxf(largest_here[r], top[r]);
      largest_here[r] = Watch::known(quad_max(largest_here[r]));
    }
    watch.find_keys(s, largest_here, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = top[r] = fmaxf(largest_here[r], top[r]);
      // Negative maxima move as soon as they can: they are the ones that do not settle.
      const bool keep =
          (largest - maximum[r]) * scale <= kSlack && !(maximum[r] < 0 && largest >= 0);
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
    extreme = __any_sync(0xffffffff, extreme);
    settled = __all_sync(0xffffffff, maximum[0] >= 0 && maximum[1] >= 0) && !extreme;
    if (extreme) {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        if (counts) watch.count(s[i]);
        const float largest = maximum[i / 2 % 2];
        s[i] -= largest == -kInfinity ? 0.f : largest;
      }
      shift[0] = shift[1] = 0;
      counts = false;
    }
    return __any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1);
  }

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
