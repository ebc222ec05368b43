#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "core/check.h"
#include "io/shown.h"
#include "text/byte_alphabet.h"
#include "text/hash.h"
#include "text/utf8.h"

namespace qkv::text {

void MergeTable::reserve(std::size_t rules, const std::string& where) {
  check(rules < (std::size_t{1} << 28), "{}: {} merges are too many", where, rules);
  where_ = where;
  rules_.assign(std::bit_ceil(std::max<std::size_t>(rules * 2, 16)), Rule{});
}

std::size_t MergeTable::first_slot(TokenId left, TokenId right) const {
  return mixed(std::uint64_t{left} << 32 | right) & (rules_.size() - 1);
}

std::size_t MergeTable::slot(TokenId left, TokenId right) const {
  std::size_t at = first_slot(left, right);
  while (rules_[at].left != kNoToken && (rules_[at].left != left || rules_[at].right != right)) {
    at = (at + 1) & (rules_.size() - 1);
  }
  return at;
}

void MergeTable::put(const Rule& rule) {
  const std::size_t at = slot(rule.left, rule.right);
  check_probes((at - first_slot(rule.left, rule.right)) & (rules_.size() - 1), where_);
  Rule& place = rules_[at];
  count_ += place.left == kNoToken ? 1 : 0;
  place = rule;
}

const MergeTable::Rule* MergeTable::find(TokenId left, TokenId right) const {
  const Rule& rule = rules_[slot(left, right)];
  return rule.left == kNoToken ? nullptr : &rule;
}

Bpe::Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options, std::string where)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), where_(std::move(where)) {
  const auto id_of = [&](std::string_view token, std::size_t rank) {
    const TokenId id = vocabulary_.find(token);
    check(id != kNoToken, "{}: merge {} needs the token '{}', which is not in the vocabulary",
          where_, rank, shown_name(token));
    return id;
  };
  merges_.reserve(merges.size(), where_);
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    check(right.size() >= options_.prefix.size(), "{}: merge {} lacks the prefix of continuations",
          where_, rank);
    joined = left;
    joined += right.substr(options_.prefix.size());
    merges_.put({id_of(left, rank), id_of(right, rank), static_cast<std::uint32_t>(rank),
                 id_of(joined, rank)});
  }
  if (!options_.unknown.empty()) unknown_ = vocabulary_.find(options_.unknown);
  has_all_bytes_ = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[byte] =
        vocabulary_.find(options_.byte_level ? to_utf8(byte_character(static_cast<char>(byte)))
                                             : byte_token(static_cast<unsigned char>(byte)));
    has_all_bytes_ = has_all_bytes_ && bytes_[byte] != kNoToken;
  }
}

TokenId Bpe::whole_word(std::string_view word) const {
  return vocabulary_.find(options_.byte_level ? bytes_to_alphabet(word) : std::string(word));
}

void Bpe::spell_unknown(std::string_view piece, std::size_t size, Workspace& work,
                        std::optional<std::uint32_t>& unknown_size) const {
  Symbols& symbols = work.symbols;
  if (options_.byte_fallback) {
    const auto token = [&](char byte) {
      return options_.byte_level ? vocabulary_.find(byte_token(static_cast<unsigned char>(byte)))
                                 : bytes_[static_cast<unsigned char>(byte)];
    };
    if (std::ranges::all_of(piece, [&](char byte) { return token(byte) != kNoToken; })) {
      work.allowance.take_bytes(piece.size(), where_);
      for (const char byte : piece) symbols.push_back({token(byte), 1});
      return;
    }
  }
  if (options_.unknown.empty()) return;  // as if it were not there
  check(unknown_ != kNoToken, "{}: the unknown token '{}' is not in the vocabulary", where_,
        shown_name(options_.unknown));
  if (unknown_size && options_.fuse_unknown) {
    *unknown_size += static_cast<std::uint32_t>(size);
    return;
  }
  if (unknown_size) symbols.push_back({unknown_, *unknown_size});
  unknown_size = static_cast<std::uint32_t>(size);
}

// A symbol for each character: the token of it, or what stands for the unknown.
void Bpe::spell(std::string_view word, Workspace& work) const {
  Symbols& symbols = work.symbols;
  symbols.clear();
  const bool plain = options_.prefix.empty() && options_.suffix.empty();
  if (options_.byte_level && plain && has_all_bytes_) {
    for (const char byte : word) symbols.push_back({bytes_[static_cast<unsigned char>(byte)], 1});
    return;
  }
  std::optional<std::uint32_t> unknown_size;  // an unknown that may still grow
  std::string piece;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t size = options_.byte_level ? 1 : utf8_size(word[i]);
    piece.clear();
    if (i > 0) piece += options_.prefix;
    piece +=
        options_.byte_level ? to_utf8(byte_character(word[i])) : std::string(word.substr(i, size));
    if (i + size == word.size()) piece += options_.suffix;
    i += size;
    work.allowance.spend(piece.size(), where_);
    const TokenId id = vocabulary_.find(piece);
    if (id == kNoToken) {
      spell_unknown(piece, size, work, unknown_size);
      continue;
    }
    if (unknown_size) symbols.push_back({unknown_, *unknown_size});
    unknown_size.reset();
    symbols.push_back({id, static_cast<std::uint32_t>(size)});
  }
  if (unknown_size) symbols.push_back({unknown_, *unknown_size});
}

void Bpe::work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const {
  if (options_.ignore_merges) {
    if (const TokenId id = whole_word(word); id != kNoToken) {
      tokens.push_back({id, 0, static_cast<std::uint32_t>(word.size())});
      return;
    }
  }
  spell(word, work);
  merge_symbols(merges_, work);
  std::uint32_t at = 0;
  // The bytes of prefix and suffix, where each byte is a token, are not the word's.
  const auto size = static_cast<std::uint32_t>(word.size());
  for (const auto& symbol : work.symbols) {
    const std::uint32_t end = std::min(at + symbol.size, size);
    tokens.push_back({symbol.id, at, end});
    at = end;
  }
}

}  // namespace qkv::text
