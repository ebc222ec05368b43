// The two ways in which sentencepiece cuts normalised text into pieces.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/sentencepiece_normalizer.h"
#include "text/workspace.h"

namespace qkv::text {

// Pieces of a model by their text: those that text can be cut into, and those it cannot.
struct PieceTable {
  explicit PieceTable(const SentencePieceModel& model);  // Error when a piece appears twice

  Vocabulary ordinary;  // normal, user-defined, unused
  Vocabulary reserved;  // unknown, control, bytes
  TokenId unknown = kNoToken;

  // The id of a piece as sentencepiece looks it up: reserved ones first, the unknown for others.
  TokenId id(std::string_view piece) const;
};

class SentencePieceEncoder {
 public:
  // Words on their own are asked for only if that makes no difference to their tokens.
  SentencePieceEncoder(const SentencePieceModel& model, const PieceTable& pieces, bool by_words);
  virtual ~SentencePieceEncoder() = default;
  // Appends tokens that cover the text, from left to right; unknown characters one by one. Without
  // `spans` the bytes of known ones may be left 0.
  void encode(std::string_view text, bool spans, Workspace& work, std::vector<Token>& tokens) const;

 protected:
  // Tokens of text that has no piece in common with what stands around it; `offset` is where it
  // begins.
  virtual void encode_word(std::string_view word, std::uint32_t offset, Workspace& work,
                           std::vector<Token>& tokens) const = 0;
  TokenId unknown() const { return unknown_; }
  const std::string& where() const { return where_; }  // the file, for messages

 private:
  void encode_cached(std::string_view word, std::uint32_t offset, Workspace& work,
                     std::vector<Token>& tokens) const;

  TokenId unknown_;
  std::string where_;
  bool splits_words_ = false;  // no piece reaches from a word into the space after it
};

std::unique_ptr<const SentencePieceEncoder> make_unigram_encoder(const SentencePieceModel& model,
                                                                 const PieceTable& pieces);
std::unique_ptr<const SentencePieceEncoder> make_bpe_encoder(const SentencePieceModel& model,
                                                             const PieceTable& pieces);

}  // namespace qkv::text
