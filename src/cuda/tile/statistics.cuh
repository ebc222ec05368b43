// What a softmax can tell about its scores while they pass (qkv/attention.h says what each number
// is), and the sums of it that blocks leave behind.
#pragma once

#include <cstdint>

#include "cuda/tile/softmax.cuh"

namespace qkv::cuda {

// What a row leaves behind for finish_statistics_kernel. Two rows that the same lanes have (row and
// row + 8 of 16) share their moments: the first has the sum of their scores, the second that of the
// squares, as the product gives them: times scale / log2(e) they are the user's.
struct alignas(16) RowTold {
  float top;  // the largest score; -inf: the row sees nothing
  float entropy, top_weight, moment;
};

// The sum over the four lanes of a quad of each lane's two numbers: lanes of even number get that
// of the first, those of odd number that of the second.
__device__ inline float quad_sum_by_row(float first, float second) {
  const bool is_odd = threadIdx.x % 2 != 0;
  float x = is_odd ? second : first;
  x += __shfl_xor_sync(0xffffffff, is_odd ? first : second, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// No score: those are larger. Finite, so that a weight of 0 times it is 0, while the scale is at
// most kLargestWatchedScale; and that weight is 0 while it is at least kLeastWatchedScale.
inline constexpr float kHiddenScore = -1e37f, kLargestWatchedScale = 16,
                       kLeastWatchedScale = 1e-30f;

// Of two rows, the sum of p log2(p), p being weights before the division.
struct EntropySums {
  float weighted[2] = {0, 0};

  // Weights so far are multiplied by `factor` = 2^-distance. Where it is 0, the distance times
  // their sum may be infinite.
  __device__ void rescale(int r, float factor, float distance, float sum) {
    weighted[r] = factor == 0 ? 0.f : factor * (weighted[r] - distance * sum);
  }
};

// Watches the thread's two rows for their entropy. Sums are the lane's own part until `finish`.
struct EntropyWatch : EntropySums {
  __device__ static constexpr bool finds_keys() { return false; }
  __device__ static float known(float largest) {
    return largest <= kHiddenScore ? -kInfinity : largest;
  }
  __device__ static constexpr bool counts() { return false; }
  __device__ void count(float) {}
  template <int Count>
  __device__ void find_keys(const float (&)[Count], const float (&)[2], const float (&)[2]) {}
  __device__ void weigh(int r, float exponent, float weight) {
    weighted[r] = fmaf(exponent, weight, weighted[r]);
  }

  // Of the row of this lane, the first for lanes of even number.
  __device__ RowTold finish(const OnlineSoftmax& softmax, float scale) const {
    const bool is_odd = threadIdx.x % 2 != 0;
    const float part = quad_sum_by_row(weighted[0], weighted[1]);
    const float sum = is_odd ? softmax.sum[1] : softmax.sum[0];
    const float maximum = is_odd ? softmax.maximum[1] : softmax.maximum[0];
    const float share = 1 / sum, entropy = (log2f(sum) - part * share) * kLn2;
    RowTold told;
    told.top = is_odd ? softmax.largest_score(1) : softmax.largest_score(0);
    told.entropy = entropy < 0 ? 0.f : entropy;  // NaN stays
    told.top_weight = exp2_fast(softmax.exponent(told.top, maximum, scale)) * share;
    told.moment = 0;
    return told;
  }
};

// And for the moments of their scores. `top_key` is the same in the quad. Without FindsKeys, it is
// not looked for, and takes no registers.
template <bool FindsKeys>
struct ScoreWatch : EntropyWatch {
  __device__ static constexpr bool finds_keys() { return FindsKeys; }

  int top_key[2] = {-1, -1};
  float total = 0, squares = 0;  // of both rows: registers are few
  int key0 = 0;                  // of the tile that comes next
  bool masked = false;           // whether it has hidden pairs

  // Moments of a tile's scores: where some are hidden, when that is done, else beside the weights.
  __device__ bool counts() const { return !masked; }
  __device__ void count(float score) {
    total += score;
    squares = fmaf(score, score, squares);
  }
  // In the compiler's own words this becomes a copy of all scores, for which there is no room.
  __device__ void count_or_hide(float& score, std::uint32_t seen, std::uint32_t bit) {
    asm("{.reg .pred p; .reg .b32 t; and.b32 t, %3, %4; setp.ne.b32 p, t, 0;\n"
        "@p add.f32 %1, %1, %0;\n"
        "@p fma.rn.f32 %2, %0, %0, %2;\n"
        "@!p mov.f32 %0, %5;}"
        : "+f"(score), "+f"(total), "+f"(squares)
        : "r"(seen), "r"(bit), "f"(kHiddenScore));
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

  __device__ RowTold finish(const OnlineSoftmax& softmax, float scale) const {
    RowTold told = EntropyWatch::finish(softmax, scale);
    told.moment = quad_sum_by_row(total, squares);
    return told;
  }
};

}  // namespace qkv::cuda
