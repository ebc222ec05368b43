// Tokens and their ids, both ways.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv::text {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = std::numeric_limits<TokenId>::max();
// The largest vocabularies have a quarter of a million tokens; ids index tables, so a file that
// claims much larger ones is refused before it costs memory.
inline constexpr TokenId kLargestId = (TokenId{1} << 22) - 1;
inline constexpr std::uint64_t kLargestFile = std::uint64_t{256} << 20;

class Vocabulary {
 public:
  explicit Vocabulary(std::string where = "vocabulary") : where_(std::move(where)) {}

  // A token that is there already gets the new id as well.
  void add(std::string_view token, TokenId id);
  void reserve(std::size_t tokens, std::size_t bytes);

  TokenId find(std::string_view token) const;  // kNoToken when it is not there
  bool has(TokenId id) const { return id < entries_.size() && entries_[id].used; }
  std::string_view token(TokenId id) const;                              // empty when there is none
  std::size_t size() const { return count_; }                            // tokens
  TokenId end() const { return static_cast<TokenId>(entries_.size()); }  // one past the last id

 private:
  struct Entry {
    std::uint32_t begin = 0, size = 0;
    bool used = false;
  };
  void insert(TokenId id);
  void grow(std::size_t tokens);

  std::string where_;  // the file, for messages
  std::string bytes_;
  std::vector<Entry> entries_;  // by id
  std::vector<TokenId> slots_;  // hash table, a power of two of them
  std::size_t count_ = 0;
};

}  // namespace qkv::text
