#include "text/vocabulary.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "text/hash.h"

namespace qkv::text {

void Vocabulary::reserve(std::size_t tokens, std::size_t bytes) {
  entries_.reserve(tokens);
  bytes_.reserve(bytes);
  grow(tokens);
}

void Vocabulary::grow(std::size_t tokens) {
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(tokens * 2, 16));
  if (wanted <= slots_.size()) return;
  slots_.assign(wanted, kNoToken);
  for (TokenId id = 0; id < entries_.size(); ++id) {
    if (entries_[id].used) insert(id);
  }
}

void check_probes(std::size_t passed, const std::string& where) {
  constexpr std::size_t kMostPassed = 1024;
  check(passed <= kMostPassed, "{}: tokens or merges are chosen to collide in a hash table", where);
}

void Vocabulary::insert(TokenId id) {
  const std::string_view token = this->token(id);
  std::size_t slot = hash_of(token) & (slots_.size() - 1), passed = 0;
  while (slots_[slot] != kNoToken && this->token(slots_[slot]) != token) {
    slot = (slot + 1) & (slots_.size() - 1);
    check_probes(++passed, where_);
  }
  slots_[slot] = id;
}

void Vocabulary::add(std::string_view token, TokenId id) {
  check(id <= kLargestId, "{}: a token has the id {}, at most {} is expected", where_, id,
        kLargestId);
  check(bytes_.size() + token.size() < std::numeric_limits<std::uint32_t>::max(),
        "{}: the tokens are longer than {} bytes together", where_,
        std::numeric_limits<std::uint32_t>::max());
  if (id >= entries_.size()) entries_.resize(id + std::size_t{1});
  count_ += entries_[id].used ? 0 : 1;
  entries_[id] = {static_cast<std::uint32_t>(bytes_.size()),
                  static_cast<std::uint32_t>(token.size()), true};
  bytes_ += token;
  grow(count_ + 1);
  insert(id);
}

TokenId Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return kNoToken;
  std::size_t slot = hash_of(token) & (slots_.size() - 1);
  while (slots_[slot] != kNoToken) {
    if (this->token(slots_[slot]) == token) return slots_[slot];
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return kNoToken;
}

std::string_view Vocabulary::token(TokenId id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(entries_[id].begin, entries_[id].size);
}

}  // namespace qkv::text
