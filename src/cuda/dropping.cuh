// Which elements dropout keeps: word i % 4 of the counter (i / 4, 0, 1) decides element i, as on
// the CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/elements.cuh"
#include "cuda/philox.cuh"

namespace qkv::cuda {

struct Dropping {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;
  float factor = 1;  // of what is kept

  Dropping() = default;
  Dropping(double p, std::uint64_t given)
      : seed(given),
        // A p that f32 cannot tell from 1 would overflow the word.
        threshold(dropout_threshold(std::min(static_cast<float>(p), 0x1.fffffep-1f))),
        factor(static_cast<float>(1 / (1 - p))) {}

  __device__ uint4 words(std::int64_t four) const {
    return philox(
        make_uint4(static_cast<std::uint32_t>(four), static_cast<std::uint32_t>(four >> 32), 0, 1),
        seed);
  }
  // Factors of the elements from i on, a multiple of 4, as many as a multiple of 4.
  template <int kCount>
  __device__ void factors(std::int64_t i, float (&to)[kCount]) const {
    static_assert(kCount % 4 == 0);
    for (int k = 0; k < kCount; k += 4) {
      const uint4 w = words(i / 4 + k / 4);
      to[k] = w.x >= threshold ? factor : 0.0f;
      to[k + 1] = w.y >= threshold ? factor : 0.0f;
      to[k + 2] = w.z >= threshold ? factor : 0.0f;
      to[k + 3] = w.w >= threshold ? factor : 0.0f;
    }
  }
  __device__ float factor_of(std::int64_t i) const {
    const uint4 w = words(i / 4);
    const std::uint32_t word[4] = {w.x, w.y, w.z, w.w};
    return word[i % 4] >= threshold ? factor : 0.0f;
  }
};
// x times a factor of 0 is 0, whatever x is.
__device__ inline float dropped(float x, float factor) { return factor == 0 ? 0.0f : x * factor; }

}  // namespace qkv::cuda
