// What is said of single pairs in the backward pass for Hopper GPUs, on the accumulators of a warp,
// which stand with keys as rows: lane / 4 and lane / 4 + 8 of its 16 keys, query rows 8 n + 2 (lane
// % 4) and the next of a step. See attention_backward_sm90.cuh.
#pragma once

#include "cuda/attention_backward_sm90_work.cuh"
#include "cuda/pair_dropout.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::backward_sm90 {

// -inf in the place of scores that a mask of pairs hides. `warp` is that of the warpgroup, whose
// tile has 64 bytes, one for each of its keys, of every row.
template <class S>
__device__ void hide_by_tile(const unsigned char* tile, int warp, float (&s)[S::Rows / 2]) {
  const int t = lane_now() % 4, key = lane_now() / 4;
  const std::uint32_t first = shared_address(tile) + 2 * t * 64 + ((warp ^ t) * 16) + key;
#pragma unroll
  for (int i = 0; i < S::Rows / 2; ++i) {
    std::uint16_t seen;
    asm volatile("{.reg .u8 b; ld.shared.u8 b, [%1]; cvt.u16.u8 %0, b;}"
                 : "=h"(seen)
                 : "r"(first + (i / 4 * 8 + i % 2) * 64 + i / 2 % 2 * 8));
    if (seen == 0) s[i] = -kInfinity;
  }
}

// scores = scores scale + bias.
template <class S>
__device__ void add_bias_tile(const unsigned char* tile, int warp, float scale,
                              float (&s)[S::Rows / 2]) {
  const int t = lane_now() % 4, key = lane_now() / 4;
  // Of both rows and both of each two columns: the first. Eight rows on, banks are the same again.
  std::uint32_t first[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * t + i % 2, chunk = 2 * warp + i / 2;
    first[i] = shared_address(tile) + row * 128 + ((chunk ^ row) * 16) + 2 * key;
  }
#pragma unroll
  for (int i = 0; i < S::Rows / 2; ++i) {
    std::uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(first[i % 4] + i / 4 * 8 * 128));
    const float bias = float(*reinterpret_cast<const typename S::T*>(&bits));
    s[i] = fmaf(s[i], scale, bias);
  }
}

// scores = scores scale + what is added at their distances: see attention_forward_sm90_pairs.cuh.
// `key` is the warp's first, `row` the step's.
template <class S>
__device__ void add_by_distance(const Params& p, const Work& work, int head, int key, int row,
                                float (&s)[S::Rows / 2]) {
  const Sm90Pairs& of = p.of_pairs;
  const int of_warp = key - row - work.band.offset;
  const int first = of_warp + lane_now() / 4 - 2 * (lane_now() % 4);
  const auto step = [](int i) { return i / 2 % 2 * 8 - i / 4 * 8 - i % 2; };
  if (of.slopes != nullptr) {
    const float slope = of.slopes[work.index * of.slopes_batch + head * of.slopes_head];
    const float start = float(first);
#pragma unroll
    for (int i = 0; i < S::Rows / 2; ++i)
      s[i] = fmaf(-slope, fabsf(start + float(step(i))), s[i] * p.scale);
    return;
  }
  const float* const middle = of.diagonal + std::int64_t(head) * (2 * of.reach + 1) + of.reach;
  const bool after = of_warp - S::Rows + 1 >= of.reach, before = of_warp + 15 <= -of.reach;
  if (after || before) {
    const float bias = middle[after ? of.reach : -of.reach];
#pragma unroll
    for (float& x : s) x = fmaf(x, p.scale, bias);
    return;
  }
#pragma unroll
  for (int i = 0; i < S::Rows / 2; ++i)
    s[i] = fmaf(s[i], p.scale, middle[min(max(first + step(i), -of.reach), of.reach)]);
}

// Adds to `sums` what FarSums are of. Pairs nearer to the diagonal than a table's reach are another
// kernel's (attention_mma_bias.cuh). `key` is the warp's first, `row` the step's.
template <class S>
__device__ void sum_by_distance(const Params& p, const Work& work, int key, int row,
                                const float (&ds)[S::Rows / 2], float (&sums)[2]) {
  const Sm90Pairs& of = p.of_pairs;
  const int of_warp = key - row - work.band.offset;
  const int first = of_warp + lane_now() / 4 - 2 * (lane_now() % 4);
  const auto step = [](int i) { return i / 2 % 2 * 8 - i / 4 * 8 - i % 2; };
  float parts[4] = {};  // side by side, so that few additions wait for one another
  const auto total = [&] { return (parts[0] + parts[1]) + (parts[2] + parts[3]); };
  if (of.slopes != nullptr) {
    const float start = float(first);
#pragma unroll
    for (int i = 0; i < S::Rows / 2; ++i)
      parts[i % 4] = fmaf(ds[i], fabsf(start + float(step(i))), parts[i % 4]);
    sums[0] -= total();
    return;
  }
  const int nearest = of_warp - S::Rows + 1, farthest = of_warp + 15;
  const bool after = nearest >= of.reach, before = farthest <= -of.reach;
  if (after || before) {
#pragma unroll
    for (int i = 0; i < S::Rows / 2; ++i) parts[i % 4] += ds[i];
    sums[0] += before ? total() : 0.f;
    sums[1] += before ? 0.f : total();
    return;
  }
  if (farthest < of.reach && nearest > -of.reach) return;
#pragma unroll
  for (int i = 0; i < S::Rows / 2; ++i) {
    const int distance = first + step(i);
    parts[i % 2] += distance <= -of.reach ? ds[i] : 0.f;
    parts[2 + i % 2] += distance >= of.reach ? ds[i] : 0.f;
  }
  sums[0] += parts[0] + parts[1];
  sums[1] += parts[2] + parts[3];
}

// What a warp has summed over a head, to where it is put together with what others have; and 0 for
// the next head.
template <class S>
__device__ void store_far_sums(const Params& p, const Work& work, int head, float (&sums)[2]) {
  const std::int64_t part =
      (std::int64_t(work.index) * p.heads + head) * p.key_blocks + work.key0 / S::Keys;
  const int warp = threadIdx.x / 32 - (kThreads / 32 - kComputingWarps);
  float* const to = p.far_sums + (part * kComputingWarps + warp) * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
      sums[i] += __shfl_xor_sync(0xffffffff, sums[i], lanes);
    if (threadIdx.x % 32 == 0) to[i] = sums[i];
    sums[i] = 0;
  }
}

// Zeros in the place of weights that dropout drops: bits of words, two neighbouring rows of a key
// in each. `key` is the warp's first, `row` the step's.
template <class S>
__device__ void drop_weights(const Params& p, const Work& work, int head, int key, int row,
                             std::uint32_t (&weights)[S::Rows / 16][4]) {
  const PairDropout& dropout = p.of_pairs.dropout;
  const bool second = key / 16 % 2 != 0;  // half of the 32 keys that share draws
  const int j = key + lane_now() / 4;
#pragma unroll
  for (int n = 0; n < S::Rows / 16; ++n) {
    const int i = row + 16 * n + 2 * (lane_now() % 4);
    const uint4 a = dropout.draw(work.index, head, i, j);
    const uint4 b = dropout.draw(work.index, head, i + 1, j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // key j + 8 r, rows 16 n + ... and 16 n + 8 + ...
      const auto of = [&](const uint4& words) {
        const std::uint32_t one = r == 0 ? words.x : words.y, other = r == 0 ? words.z : words.w;
        return dropout.compare(second ? other : one);
      };
      const std::uint32_t x = of(a), y = of(b);
      weights[n][r] &= kept_halves<0>(x, y);
      weights[n][2 + r] &= kept_halves<1>(x, y);
    }
  }
}

// dS times the derivative of the softcap, 1 - tanh^2: tanh is found again from the weight, in which
// its error is what the weight is rounded by, a few times less. `lse` is the row's, in base 2.
__device__ inline float uncap(float ds, float weight, float lse, float per_cap) {
  float exponent;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(exponent) : "f"(weight));
  const float tanh = fminf(fmaxf((exponent + lse) * per_cap, -1.f), 1.f);
  return ds * (1 - tanh * tanh);
}

}  // namespace qkv::cuda::backward_sm90
