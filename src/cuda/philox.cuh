// Philox4x32-10 on the device: the numbers of core/philox.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/philox.h"

namespace qkv::cuda {

__device__ inline uint4 philox(uint4 c, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t low0 = 0xD2511F53u * c.x, high0 = __umulhi(0xD2511F53u, c.x);
    const std::uint32_t low1 = 0xCD9E8D57u * c.z, high1 = __umulhi(0xCD9E8D57u, c.z);
    c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace qkv::cuda
