// The two ways in which sentencepiece cuts normalised text into pieces.
#pragma once

#include <memory>
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
  virtual ~SentencePieceEncoder() = default;
  // Appends tokens that cover the text, from left to right; unknown characters one by one.
  virtual void encode(std::string_view text, bool spans, Workspace& work,
                      std::vector<Token>& tokens) const = 0;
};

std::unique_ptr<const SentencePieceEncoder> make_unigram_encoder(const SentencePieceModel& model,
                                                                 const PieceTable& pieces);
std::unique_ptr<const SentencePieceEncoder> make_bpe_encoder(const SentencePieceModel& model,
                                                             const PieceTable& pieces);

}  // namespace qkv::text
