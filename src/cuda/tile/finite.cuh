// Values that are not finite, found 8 at a time.
//
// A hidden pair has weight 0, but 0 * NaN is NaN, and a matrix product multiplies every pair of its
// tile. So NaN and Inf are taken out of tiles of values in which some pair is hidden, and given
// back by hand to the rows that do see them: a positive weight times NaN or Inf is NaN or Inf, so
// it is enough to add them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace qkv::cuda {

template <class T>
__device__ bool all_finite(uint4 words) {
  using Pair = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>;
  // x * 0 is NaN for Inf and NaN, and stays so in the sum.
  const auto pair = [](const std::uint32_t& word) { return reinterpret_cast<const Pair&>(word); };
  const std::uint32_t zero_bits = 0;
  const Pair zero = pair(zero_bits);
  Pair sum = __hmul2(pair(words.x), zero);
  sum = __hfma2(pair(words.y), zero, sum);
  sum = __hfma2(pair(words.z), zero, sum);
  sum = __hfma2(pair(words.w), zero, sum);
  return __hbeq2(sum, sum);
}

template <class T>
__device__ std::uint32_t only_finite(std::uint32_t pair) {
  constexpr std::uint32_t exponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80 : 0x7c00;
  if ((pair & exponent) == exponent) pair &= 0xffff0000;
  if ((pair >> 16 & exponent) == exponent) pair &= 0x0000ffff;
  return pair;
}
template <class T>
__device__ uint4 only_finite(uint4 words) {
  return {only_finite<T>(words.x), only_finite<T>(words.y), only_finite<T>(words.z),
          only_finite<T>(words.w)};
}

}  // namespace qkv::cuda
