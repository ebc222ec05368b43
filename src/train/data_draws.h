// Random decisions about data, each a function of the seed, the epoch, what is decided and about
// what; whole numbers only, so that every machine decides alike.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace qkv::data {

enum class Decision : std::uint32_t { order, batches, prefix, cut, mask, study };

class Draws {
 public:
  Draws(std::uint64_t seed, Decision decision, std::int64_t epoch)
      : seed_(seed),
        decision_(static_cast<std::uint32_t>(decision)),
        epoch_(static_cast<std::uint32_t>(epoch)) {}

  // Four words for the thing with this number.
  std::array<std::uint32_t, 4> at(std::uint64_t number) const {
    return philox_words({static_cast<std::uint32_t>(number),
                         static_cast<std::uint32_t>(number >> 32), decision_, epoch_},
                        seed_);
  }
  // 0 to count - 1; count is far below 2^32, so that none is noticeably likelier.
  std::uint64_t below(std::uint64_t number, std::uint64_t count) const {
    const auto words = at(number);
    const std::uint64_t high = words[0] * count, low = words[1] * count >> 32;
    return (high + low) >> 32;
  }

  template <class T>
  void shuffle(std::vector<T>& values) const {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i, i)]);
  }

 private:
  std::uint64_t seed_;
  std::uint32_t decision_, epoch_;
};

// A word is below this with probability `rate`.
inline std::uint64_t threshold(double rate) {
  return static_cast<std::uint64_t>(rate * 4294967296.0);
}

}  // namespace qkv::data
