#include "text/sentencepiece_encoder.h"

#include <algorithm>

#include "text/metaspace.h"

namespace qkv::text {
namespace {

// Spaces, then what is none.
std::size_t word_end(std::string_view text, std::size_t at) {
  while (text.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
  return std::min(text.find(kMetaspace, at), text.size());
}

}  // namespace

SentencePieceEncoder::SentencePieceEncoder(const SentencePieceModel& model,
                                           const PieceTable& pieces, bool by_words)
    : unknown_(pieces.unknown), where_(model.name) {
  // A space must be a piece, or an unknown one would belong to the run of unknown before it.
  splits_words_ = by_words && pieces.ordinary.find(kMetaspace) != kNoToken &&
                  std::ranges::all_of(model.pieces, [](const SentencePieceModel::Piece& piece) {
                    return word_end(piece.text, 0) == piece.text.size();
                  });
}

void SentencePieceEncoder::encode(std::string_view text, bool spans, Workspace& work,
                                  std::vector<Token>& tokens) const {
  if (!splits_words_) return encode_word(text, 0, work, tokens);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = word_end(text, begin);
    const std::string_view word = text.substr(begin, end - begin);
    const auto offset = static_cast<std::uint32_t>(begin);
    if (spans || !WordCache::takes(word)) {
      encode_word(word, offset, work, tokens);
    } else {
      encode_cached(word, offset, work, tokens);
    }
    begin = end;
  }
}

void SentencePieceEncoder::encode_cached(std::string_view word, std::uint32_t offset,
                                         Workspace& work, std::vector<Token>& tokens) const {
  WordCache::Entry& entry = work.cache.entry(word);
  if (entry.is(word)) {
    for (const TokenId id : entry.tokens()) tokens.push_back({id});
    return;
  }
  const std::size_t before = tokens.size();
  encode_word(word, offset, work, tokens);
  const std::span<const Token> added(tokens.begin() + static_cast<std::ptrdiff_t>(before),
                                     tokens.end());
  // Unknown characters need their bytes afterwards, which a cached token has not.
  const auto is_unknown = [&](const Token& token) { return token.id == unknown_; };
  if (added.size() > WordCache::kMostTokens || std::ranges::any_of(added, is_unknown)) return;
  for (std::size_t i = 0; i < added.size(); ++i) entry.ids[i] = added[i].id;
  WordCache::put(entry, word, added.size());
}

}  // namespace qkv::text
