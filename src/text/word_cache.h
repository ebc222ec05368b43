// Tokens of words seen before: language repeats itself, and merging is slow. Of bounded size; a new
// word takes the place of an old one.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/hash.h"
#include "text/vocabulary.h"

namespace qkv::text {

class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 30;
  static constexpr std::size_t kMostTokens = 8;

  // One cache line.
  struct Entry {
    std::array<char, kLongestWord> word{};
    std::uint8_t size = 0;  // 0: nothing yet
    std::uint8_t count = 0;
    std::array<TokenId, kMostTokens> ids{};

    bool is(std::string_view text) const {
      return size == text.size() && std::memcmp(word.data(), text.data(), text.size()) == 0;
    }
    std::span<const TokenId> tokens() const { return {ids.data(), count}; }
  };

  static bool takes(std::string_view word) { return word.size() <= kLongestWord; }
  // The entry for a word that takes() and is not empty; ask is() whether it holds it.
  Entry& entry(std::string_view word) {
    if (entries_.empty()) entries_.resize(kEntries);
    return entries_[hash_of(word) & (kEntries - 1)];
  }
  static void put(Entry& entry, std::string_view word, std::size_t count) {
    std::memcpy(entry.word.data(), word.data(), word.size());
    entry.size = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(count);
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;  // 2 MiB
  std::vector<Entry> entries_;
};

}  // namespace qkv::text
