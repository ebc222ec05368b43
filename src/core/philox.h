// Philox4x32-10, inline for kernels.
#pragma once

#include <array>
#include <cstdint>

namespace qkv {

inline std::array<std::uint32_t, 4> philox_words(std::array<std::uint32_t, 4> c,
                                                 std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Dropout of attention weights: word j % 4 of the counter (j / 4, i, h, b) decides pair (i, j).
// A pair is kept when its word is at least this.
inline std::uint32_t dropout_threshold(float rate) {
  return static_cast<std::uint32_t>(static_cast<double>(rate) * 4294967296.0);
}

}  // namespace qkv
