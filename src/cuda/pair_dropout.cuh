// Which pairs of query and key the dropout of attention keeps: the draws of core/philox.h, of which
// one decides eight pairs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/philox.h"

namespace qkv::cuda {

struct PairDropout {
  uint2 keys[kPairRounds]{};  // of the rounds: they are the same for all pairs
  std::uint32_t below = 0;    // twice: a pair whose 16 bits are below is dropped
  float kept = 1;             // what the others are multiplied by

  PairDropout() = default;
  PairDropout(float rate, std::uint64_t seed)
      : below(pair_threshold(rate) * 0x10001u), kept(1 / (1 - rate)) {
    auto first = static_cast<std::uint32_t>(seed), second = static_cast<std::uint32_t>(seed >> 32);
    for (uint2& key : keys) {
      key = {first, second};
      first += kPhiloxSteps[0];
      second += kPhiloxSteps[1];
    }
  }

  // Words n = 0 .. 3: of keys 8 n + j % 8 of the 32 around j, and of query i % 8 (low half) and
  // i % 8 + 8 of the 16 around i.
  __device__ uint4 draw(int sequence, int head, int i, int j) const {
    uint4 c{unsigned(j) / 32 * 8 + unsigned(j) % 8, unsigned(i) / 16 * 8 + unsigned(i) % 8,
            unsigned(head), unsigned(sequence)};
    for (const uint2 key : keys) {
      const std::uint64_t p0 = std::uint64_t{kPhiloxFactors[0]} * c.x;
      const std::uint64_t p1 = std::uint64_t{kPhiloxFactors[1]} * c.z;
      c = {std::uint32_t(p1 >> 32) ^ c.y ^ key.x, std::uint32_t(p1),
           std::uint32_t(p0 >> 32) ^ c.w ^ key.y, std::uint32_t(p0)};
    }
    return c;
  }
  // Of both halves of a word of a draw: the highest bit says whether the pair is kept; other bits
  // say nothing.
  __device__ std::uint32_t compare(std::uint32_t word) const {
    constexpr std::uint32_t kHighest = 0x80008000;
    const std::uint32_t rest =
        (word | kHighest) - (below & ~kHighest);  // borrows from no neighbour
    return (word & ~below) | (~(word ^ below) & rest);
  }
  __device__ bool keeps(int sequence, int head, int i, int j) const {
    const uint4 words = draw(sequence, head, i, j);
    const std::uint32_t low = j / 8 % 2 == 0 ? words.x : words.y;
    const std::uint32_t high = j / 8 % 2 == 0 ? words.z : words.w;
    return (compare(j / 16 % 2 == 0 ? low : high) >> (i / 8 % 2 * 16 + 15) & 1) != 0;
  }
};

// Of two words that are compared: all or no bits in each half, those of the first in the low half,
// of the second in the high one. `Half` is which of a word's pairs is asked for.
template <int Half>
__device__ std::uint32_t kept_halves(std::uint32_t first, std::uint32_t second) {
  std::uint32_t mask;  // bytes that repeat the sign of one: 1 or 3 of each word
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(mask)
      : "r"(first), "r"(second), "n"(Half == 0 ? 0xdd99 : 0xffbb));
  return mask;
}

}  // namespace qkv::cuda
