// What is said of single pairs in the forward pass for Hopper GPUs, on the accumulators of a warp:
// rows lane / 4 and lane / 4 + 8 of its 16, keys 8 n + 2 (lane % 4) and the next of a tile. See
// attention_forward_sm90.cuh.
#pragma once

#include "cuda/attention_forward_sm90_work.cuh"
#include "cuda/attention_pairs.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::forward_sm90 {

// Index of a batch or head of what is said, where one may serve all.
__device__ inline int said_index(std::int64_t count, int index) { return count == 1 ? 0 : index; }

// A tile of the bias or mask, beside its keys.
template <class S>
__device__ void load_said(const Params& p, Shared<S>& shared, const Work& work, int tile,
                          int stage) {
  Barrier& full = shared.k_ring.full[stage];
  full.expect(S::SaidBytes);
#pragma unroll
  for (int slab = 0; slab < S::Keys / kSlab; ++slab)
    load_slab(shared.said[stage] + slab * (S::SaidBytes / (S::Keys / kSlab)), p.said, full,
              tile * S::Keys + slab * kSlab, work.row0, said_index(p.of_pairs.heads, work.head),
              said_index(p.of_pairs.batches, work.q_batch), Keep::long_time);
}

// Whether a mask or a bias of -inf hides a pair; by a look at memory, for few of them.
template <class S>
__device__ bool is_hidden(const Params& p, const Work& work, int row, int key) {
  if constexpr (S::SaidInTiles) {
    const Sm90Pairs& of = p.of_pairs;
    const std::int64_t at = said_index(of.batches, work.q_batch) * of.strides.batch +
                            said_index(of.heads, work.head) * of.strides.head +
                            row * of.strides.row + key;
    if (row >= work.row0 + work.rows) return true;
    if constexpr (S::Pairs == Said::mask)
      return !static_cast<const bool*>(of.data)[at];
    else
      return float(static_cast<const typename S::T*>(of.data)[at]) == -kInfinity;
  }
  return false;
}

// Two neighbours of a row of a tile of biases, for n = 0 .. 7 of a slab.
struct BiasReader {
  std::uint32_t lane;  // where those of n = 0 lie, but for what the swizzle makes of n

  __device__ static BiasReader of(const unsigned char* tile, int warp) {
    const int t = lane_now() % 4, row = lane_now() / 4;
    return {shared_address(tile) + (16 * warp + row) * 128 + row * 16 + 4 * t};
  }
  template <int Rows>
  __device__ std::uint32_t at(int slab, int n, int half) const {
    std::uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(word)
                 : "r"((lane ^ (n * 16)) + slab * Rows * 128 + half * 8 * 128));
    return word;
  }
};

__device__ inline void split_pair(std::uint32_t word, __nv_bfloat16, float (&to)[2]) {
  to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000);
}
__device__ inline void split_pair(std::uint32_t word, __half, float (&to)[2]) {
  const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&word));
  to[0] = two.x, to[1] = two.y;
}
// The smaller of each half. NaN counts as large.
__device__ inline std::uint32_t smaller_of_pairs(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  asm("min.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ inline std::uint32_t smaller_of_pairs(std::uint32_t a, std::uint32_t b, __half) {
  asm("min.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}

// scores = scores scale + bias; -inf, whatever the score, where the bias is. That is looked for in
// a tile as a whole first.
template <class S>
__device__ void add_bias_tile(const unsigned char* tile, int warp, float scale,
                              float (&s)[S::Keys / 2]) {
  using T = typename S::T;
  const BiasReader reader = BiasReader::of(tile, warp);
  std::uint32_t least = 0;  // two zeros
  const auto each = [&](auto visit) {
#pragma unroll
    for (int slab = 0; slab < S::Keys / kSlab; ++slab) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          visit(reader.at<S::Rows>(slab, n, r), &s[(8 * slab + n) * 4 + 2 * r]);
      }
    }
  };
  each([&](std::uint32_t word, float* x) {
    float bias[2];
    split_pair(word, T(), bias);
    least = smaller_of_pairs(least, word, T());
    x[0] = fmaf(x[0], scale, bias[0]);
    x[1] = fmaf(x[1], scale, bias[1]);
  });
  float lowest[2];
  split_pair(least, T(), lowest);
  if (fminf(lowest[0], lowest[1]) != -kInfinity) return;
  each([&](std::uint32_t word, float* x) {
    float bias[2];
    split_pair(word, T(), bias);
    if (bias[0] == -kInfinity) x[0] = -kInfinity;
    if (bias[1] == -kInfinity) x[1] = -kInfinity;
  });
}

// -inf in the place of scores that a mask of pairs hides.
template <class S>
__device__ void hide_by_tile(const unsigned char* tile, int warp, float (&s)[S::Keys / 2]) {
  const int t = lane_now() % 4, row = 16 * warp + lane_now() / 4;
  // Row + 8 has the same two bits of the swizzle.
  const std::uint32_t first = shared_address(tile) + row * 64 + 2 * t, turned = (row >> 1 & 3) * 16;
#pragma unroll
  for (int slab = 0; slab < S::Keys / kSlab; ++slab) {
    // Of each row a bit for every key: n for the first of two, 8 + n for the second. A byte is 0
    // or 1.
    std::uint32_t seen[2] = {0, 0};
#pragma unroll
    for (int n = 7; n >= 0; --n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint16_t two;
        asm volatile(
            "ld.shared.u16 %0, [%1];"
            : "=h"(two)
            : "r"(first + (slab * S::Rows + r * 8) * 64 + (n / 2 * 16 ^ turned) + n % 2 * 8));
        seen[r] = (seen[r] << 1) + two;
      }
    }
    if (__all_sync(0xffffffff, (seen[0] & seen[1]) == 0xffff)) continue;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* const x = &s[(8 * slab + n) * 4 + 2 * r];
        if ((seen[r] & 1u << n) == 0) x[0] = -kInfinity;
        if ((seen[r] & 256u << n) == 0) x[1] = -kInfinity;
      }
    }
  }
}

// scores = scores scale + what is added at their distances.
template <class S>
__device__ void add_by_distance(const Params& p, const Work& work, int warp, int tile,
                                float (&s)[S::Keys / 2]) {
  const Sm90Pairs& of = p.of_pairs;
  const float scale = p.inner_scale;
  // Of the warp's first pair, and of the lane's.
  const int of_warp = tile * S::Keys - (work.row0 + 16 * warp) - work.band.offset;
  const int first = of_warp + 2 * (lane_now() % 4) - lane_now() / 4;
  if (of.slopes != nullptr) {
    const float slope = of.slopes[work.index * of.slopes_batch + work.head * of.slopes_head];
    const float start = float(first);
#pragma unroll
    for (int i = 0; i < S::Keys / 2; ++i) {
      const int step = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
      s[i] = fmaf(-slope, fabsf(start + float(step)), s[i] * scale);
    }
    return;
  }
  const float* const middle = of.diagonal + std::int64_t(work.head) * (2 * of.reach + 1) + of.reach;
  // Far from the diagonal all pairs get the same.
  const bool after = of_warp - 15 >= of.reach, before = of_warp + S::Keys - 1 <= -of.reach;
  if (after || before) {
    const float bias = middle[after ? of.reach : -of.reach];
#pragma unroll
    for (float& x : s) x = fmaf(x, scale, bias);
    return;
  }
#pragma unroll
  for (int i = 0; i < S::Keys / 2; ++i) {
    const int distance = first + i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
    s[i] = fmaf(s[i], scale, middle[min(max(distance, -of.reach), of.reach)]);
  }
}

// Products of a tile, whose keys are in `stage`, to scores.
template <class S>
__device__ void say_of_pairs(const Params& p, const Shared<S>& shared, const Work& work, int warp,
                             int tile, int stage, float (&s)[S::Keys / 2]) {
  if constexpr (S::Pairs == Said::bias)
    add_bias_tile<S>(shared.said[stage], warp, p.inner_scale, s);
  else if constexpr (S::Pairs == Said::mask)
    hide_by_tile<S>(shared.said[stage], warp, s);
  else
    add_by_distance<S>(p, work, warp, tile, s);
}

// What dropout keeps of a tile's weights, as they are packed for the product with values, two
// neighbouring keys of a row in a word: all or no bits of each. As conditions, the compiler would
// no longer let products run beside them.
template <class S>
__device__ void draw_kept(const Params& p, const Work& work, int warp, int tile,
                          std::uint32_t (&kept)[S::Keys / 16][4]) {
  const PairDropout& dropout = p.of_pairs.dropout;
  const int i = work.row0 + 16 * warp + lane_now() / 4;
#pragma unroll
  for (int group = 0; group < S::Keys / 32; ++group) {
    const int j = tile * S::Keys + 32 * group + 2 * (lane_now() % 4);
    const uint4 first = dropout.draw(work.index, work.head, i, j);
    const uint4 second = dropout.draw(work.index, work.head, i, j + 1);
    const std::uint32_t words[4][2] = {
        {first.x, second.x}, {first.y, second.y}, {first.z, second.z}, {first.w, second.w}};
#pragma unroll
    for (int n = 0; n < 4; ++n) {  // keys 8 n + ...
      const std::uint32_t a = dropout.compare(words[n][0]), b = dropout.compare(words[n][1]);
      std::uint32_t* const of_rows = &kept[2 * group + n / 2][n % 2 * 2];
      of_rows[0] = kept_halves<0>(a, b);
      of_rows[1] = kept_halves<1>(a, b);
    }
  }
}

}  // namespace qkv::cuda::forward_sm90
