// What the scores of 16 rows of a warp tell while they pass through the kernels by matrix
// instructions, whatever is done to their pairs: logits before softcap and bias, scores after.
#pragma once

#include <cfloat>

#include "cuda/attention_mma.cuh"
#include "cuda/tile/statistics.cuh"

namespace qkv::cuda {

// As fmaxf, but NaN stays.
__device__ inline float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// How many numbers there are, their mean and the sum of squares about it, by Welford's rule for
// groups: a mean far from 0 costs no digits.
struct Moments {
  float count = 0, mean = 0, squares = 0;

  __device__ void join(const Moments& other) {
    if (other.count == 0) return;
    const float both = count + other.count, gap = other.mean - mean;
    const float part = other.count / both;
    squares += other.squares + gap * gap * (count * part);
    mean += gap * part;
    count = both;
  }
  __device__ Moments of_lane(int step) const {
    return {__shfl_xor_sync(0xffffffff, count, step), __shfl_xor_sync(0xffffffff, mean, step),
            __shfl_xor_sync(0xffffffff, squares, step)};
  }
};

// A row when its softmax is finished.
struct RowEnd {
  float maximum, sum;  // of the softmax
  // Of the largest score and of the maximum, which is 0 but for rounding, as they were summed up.
  float top_exponent, own_exponent;
  float lse, full_lse;  // without its sink, and with it
};

// Watches the lane's two rows. `top_key` is the same in the quad, all else is the lane's own part
// until `finish`. The softmax asks for what NoWatch (softmax.cuh) has.
struct PairWatch : EntropySums {
  bool wants_moments = false, wants_keys = false;
  int key0 = 0;  // of the tile that comes next
  int top_key[2] = {-1, -1};
  float logit[2] = {-kInfinity, -kInfinity};  // as the product gives it
  // Of scores less `origin`, in the unit in which the softmax gets them. The origin is the mean of
  // some scores of the row, if digits matter that a mean far from 0 would cost.
  Moments moments[2];
  float origin[2] = {};

  __device__ void begin(const RowStatistics& rows) {
    wants_moments = rows.moments;
    wants_keys = rows.top_index != nullptr;
  }
  // Products of a tile, before anything is done to them.
  template <class Pairs, int kCount>
  __device__ __forceinline__ void see_logits(float (&x)[kCount], const PairBits& bits) {
    Pairs::each(x, [&](float& product, int r, int n) {
      if ((bits.of[r] >> n & 1) != 0) logit[r] = max_or_nan(logit[r], product);
    });
  }
  // Scores of a tile, where hidden ones are anything.
  template <class Pairs, bool kExact, int kCount>
  __device__ __forceinline__ void see_scores(float (&x)[kCount], const PairBits& bits) {
    const float count[2] = {static_cast<float>(__popc(bits.of[0])),
                            static_cast<float>(__popc(bits.of[1]))};
    if (!wants_moments) {
      moments[0].count += count[0];
      moments[1].count += count[1];
      return;
    }
    if constexpr (kExact) {
#pragma unroll
      for (int r = 0; r < 2; ++r) find_origin<Pairs>(x, bits, r);
    }
    float mean[2] = {}, squares[2] = {};
    Pairs::each(x, [&](float& score, int r, int n) {
      if ((bits.of[r] >> n & 1) != 0) mean[r] += kExact ? score - origin[r] : score;
    });
    mean[0] /= fmaxf(count[0], 1);
    mean[1] /= fmaxf(count[1], 1);
    Pairs::each(x, [&](float& score, int r, int n) {
      const float gap = (kExact ? score - origin[r] : score) - mean[r];
      if ((bits.of[r] >> n & 1) != 0) squares[r] = fmaf(gap, gap, squares[r]);
    });
    moments[0].join({count[0], mean[0], squares[0]});
    moments[1].join({count[1], mean[1], squares[1]});
  }

  // The mean of the first tile in which the row sees something.
  template <class Pairs, int kCount>
  __device__ void find_origin(float (&x)[kCount], const PairBits& bits, int r) {
    const bool begins = quad_sum(moments[r].count) == 0;
    if (!__any_sync(0xffffffff, begins)) return;
    float sum = 0;
    Pairs::each(x, [&](float& score, int row, int n) {
      if (row == r && (bits.of[r] >> n & 1) != 0) sum += score;
    });
    const float count = quad_sum(static_cast<float>(__popc(bits.of[r])));
    const float mean = quad_sum(sum) / fmaxf(count, 1);
    if (begins && isfinite(mean)) origin[r] = mean;
  }

  // ---- The softmax's side.
  __device__ bool finds_keys() const { return wants_keys; }
  __device__ static float known(float largest) { return largest; }
  __device__ static bool counts() { return false; }
  __device__ void count(float) {}
  // Tiles come from the first to the last: the smallest key of equals is found first.
  template <int kCount>
  __device__ void find_keys(const float (&s)[kCount], const float (&largest)[2],
                            const float (&top)[2]) {
    if (!wants_keys) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool higher = largest[r] > top[r];
      if (!__any_sync(0xffffffff, higher)) continue;
      int key = INT32_MAX;
#pragma unroll
      for (int i = kCount - 4; i >= 0; i -= 4) {
        if (s[i + 2 * r + 1] == largest[r]) key = 2 * i + 1;
        if (s[i + 2 * r] == largest[r]) key = 2 * i;
      }
      if (key != INT32_MAX) key += static_cast<int>(threadIdx.x) % 4 * 2;
      key = min(key, __shfl_xor_sync(0xffffffff, key, 1));
      key = min(key, __shfl_xor_sync(0xffffffff, key, 2));
      if (higher) top_key[r] = key0 + key;
    }
  }
  // A weight of 0 times an exponent of -inf is 0.
  __device__ void weigh(int r, float exponent, float weight) {
    weighted[r] = fmaf(fmaxf(exponent, -FLT_MAX), weight, weighted[r]);
  }

  // Each lane gets what the quad knows. Called by whole warps, whose softmax is finished.
  __device__ void finish(const OnlineSoftmax& softmax, float scale, RowEnd (&ends)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weighted[r] = quad_sum(weighted[r]);
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        logit[r] = max_or_nan(logit[r], __shfl_xor_sync(0xffffffff, logit[r], step));
        moments[r].join(moments[r].of_lane(step));
      }
      const float maximum = softmax.maximum[r];
      ends[r] = {maximum, softmax.sum[r],
                 softmax.exponent(softmax.largest_score(r), maximum, scale),
                 softmax.exponent(maximum, maximum, scale)};
    }
  }
  // What row r has told, to its place. `unit` is what makes scores the user's.
  __device__ void store(const RowStatistics& rows, std::int64_t at, int r, const RowEnd& end,
                        const AttentionJob& job, float unit) const {
    const Moments& m = moments[r];
    const bool sees = m.count > 0, felt = end.sum != 0;
    // What the sink leaves for keys.
    const float left = job.sinks != nullptr && felt ? expf(end.lse - end.full_lse) : 1.0f;
    const float share = felt ? left / end.sum : 0.0f;
    rows.seen[at] = m.count;
    rows.top[at] = felt ? end.maximum : 0.0f;
    rows.share[at] = felt ? share * exp2_fast(end.own_exponent) : 0.0f;
    rows.logit[at] = logit[r] * job.scale;
    rows.origin[at] = origin[r] * unit;
    rows.mean[at] = m.mean * unit;
    rows.squares[at] = m.squares * unit * unit;
    if (rows.entropy != nullptr) {
      float entropy = (log2f(end.sum) - weighted[r] / end.sum) * kLn2;
      if (job.sinks != nullptr) {
        entropy = felt ? entropy_with_sink(entropy, left, end.lse, end.full_lse) : end.full_lse;
      } else if (entropy < 0) {  // NaN stays
        entropy = 0;
      }
      rows.entropy[at] = sees ? entropy : 0.0f;
    }
    if (rows.top_weight != nullptr) {
      rows.top_weight[at] = sees && felt ? exp2_fast(end.top_exponent) * share : 0.0f;
    }
    if (rows.top_index != nullptr) rows.top_index[at] = sees ? top_key[r] : -1;
  }
};

}  // namespace qkv::cuda
