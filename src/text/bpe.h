// Byte pair encoding: characters, merged pair by pair in the order the merges were learnt.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/cached_model.h"

namespace qkv::text {

// (left, right) -> rank and result; open addressing.
class MergeTable {
 public:
  struct Rule {
    TokenId left = kNoToken, right = kNoToken;
    std::uint32_t rank = 0;
    TokenId result = 0;
  };
  void reserve(std::size_t rules, const std::string& where);  // `where` names the file
  void put(const Rule& rule);  // a pair that is there already gets the new rank
  const Rule* find(TokenId left, TokenId right) const;
  std::size_t size() const { return count_; }

 private:
  std::size_t first_slot(TokenId left, TokenId right) const;
  std::size_t slot(TokenId left, TokenId right) const;
  std::string where_;
  std::vector<Rule> rules_;
  std::size_t count_ = 0;
};

struct BpeOptions {
  std::string unknown{};  // empty: none
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
  std::string prefix{}, suffix{};  // of pieces that continue a word, and that end one
  bool byte_level = false;         // words are bytes, which the vocabulary writes as characters
};

class Bpe final : public CachedModel {
 public:
  using Merges = std::vector<std::pair<std::string_view, std::string_view>>;
  // Throws Error when a merge names a token that is not in the vocabulary.
  Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options, std::string where);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  TokenId unknown() const override { return unknown_; }
  std::string kind() const override { return options_.byte_level ? "byte-level BPE" : "BPE"; }

 protected:
  void work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const override;

 private:
  using Symbols = std::vector<Workspace::Symbol>;
  void spell(std::string_view word, Workspace& work) const;
  void spell_unknown(std::string_view piece, std::size_t size, Workspace& work,
                     std::optional<std::uint32_t>& unknown_size) const;
  TokenId whole_word(std::string_view word) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::string where_;  // names the file in messages
  MergeTable merges_;
  TokenId unknown_ = kNoToken;
  std::array<TokenId, 256> bytes_{};  // of "<0x0A>" tokens, or of characters that stand for bytes
  bool has_all_bytes_ = false;
};

// Merges symbols until no rule applies, the lowest rank first and leftmost among equals.
void merge_symbols(const MergeTable& merges, Workspace& work);

}  // namespace qkv::text
