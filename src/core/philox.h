// Philox4x32, inline for kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace qkv {

inline constexpr std::uint32_t kPhiloxFactors[2] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t kPhiloxSteps[2] = {0x9E3779B9u, 0xBB67AE85u};  // of the key

// Ten rounds are what its authors recommend, seven the fewest that passed all of their tests.
template <int kRounds = 10>
inline std::array<std::uint32_t, 4> philox_words(std::array<std::uint32_t, 4> c,
                                                 std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxFactors[0]} * c[0];
    const std::uint64_t p1 = std::uint64_t{kPhiloxFactors[1]} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
  return c;
}

// Dropout of elements: one is kept when its word is at least this.
inline std::uint32_t dropout_threshold(float rate) {
  return static_cast<std::uint32_t>(static_cast<double>(rate) * 4294967296.0);
}

// Dropout of attention weights. One draw, of seven rounds, decides eight pairs by 16 bits each: of
// queries i and i + 8 of 16, and keys j, j + 8, j + 16 and j + 24 of 32. Those are pairs that a
// thread has at once where matrix instructions make them, with queries as rows; of keys as rows it
// has half of them. Word j / 8 % 4 of the counter below decides, query i by its low half and i + 8
// by its high one: a pair is kept when its 16 bits are at least pair_threshold.
inline constexpr int kPairRounds = 7;
inline std::array<std::uint32_t, 4> pair_counter(std::int64_t b, std::int64_t h, std::int64_t i,
                                                 std::int64_t j) {
  return {static_cast<std::uint32_t>(j / 32 * 8 + j % 8),
          static_cast<std::uint32_t>(i / 16 * 8 + i % 8), static_cast<std::uint32_t>(h),
          static_cast<std::uint32_t>(b)};
}
inline std::uint32_t pair_threshold(float rate) {
  return static_cast<std::uint32_t>(std::min(std::lround(rate * 65536), 65535L));
}

}  // namespace qkv
