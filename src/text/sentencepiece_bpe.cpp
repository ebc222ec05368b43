#include <algorithm>

#include "core/check.h"
#include "io/shown.h"
#include "text/bpe.h"
#include "text/sentencepiece_encoder.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

using Type = SentencePieceModel::Type;

// Merges two neighbours whenever together they are a piece, the best score first. Scores become
// ranks and pairs become rules, so that the merging of Bpe does the work.
class BpeEncoder final : public SentencePieceEncoder {
 public:
  BpeEncoder(const SentencePieceModel& model, const PieceTable& pieces)
      : SentencePieceEncoder(model, pieces, true), user_defined_(model), symbols_(model.name) {
    add_symbols(model);
    add_rules(model);
    for (const auto& piece : model.pieces) {
      check(piece.type != Type::unused,
            "{}: '{}' is an unused piece, which is not supported in a BPE model", model.name,
            shown_name(piece.text));
    }
  }

 private:
  static constexpr TokenId kFrozen = TokenId{1} << 31;  // never merged: no rule knows such an id

  // Every piece, and every character that a piece has but is none itself.
  void add_symbols(const SentencePieceModel& model) {
    auto next = static_cast<TokenId>(model.pieces.size());
    const auto ordinary = [](Type type) {
      return type == Type::normal || type == Type::user_defined || type == Type::unused;
    };
    for (TokenId id = 0; id < model.pieces.size(); ++id) {
      if (ordinary(model.pieces[id].type)) symbols_.add(model.pieces[id].text, id);
    }
    pieces_end_ = next;
    for (const auto& piece : model.pieces) {
      if (!ordinary(piece.type)) continue;
      for (std::size_t i = 0; i < piece.text.size(); i += utf8_size(piece.text[i])) {
        const auto character = std::string_view(piece.text).substr(i, utf8_size(piece.text[i]));
        if (symbols_.find(character) == kNoToken) symbols_.add(character, next++);
      }
    }
  }

  void add_rules(const SentencePieceModel& model) {
    std::vector<float> scores;
    for (const auto& piece : model.pieces) scores.push_back(piece.score);
    std::ranges::sort(scores, std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    std::vector<MergeTable::Rule> rules;
    for (TokenId id = 0; id < pieces_end_; ++id) {
      if (!symbols_.has(id)) continue;
      const std::string_view piece = symbols_.token(id);
      const auto rank = static_cast<std::uint32_t>(
          std::ranges::lower_bound(scores, model.pieces[id].score, std::greater<>()) -
          scores.begin());
      if (piece.size() > kLongestPiece) continue;
      for (std::size_t i = utf8_size(piece[0]); i < piece.size(); i += utf8_size(piece[i])) {
        const TokenId left = symbols_.find(piece.substr(0, i));
        if (left == kNoToken) continue;
        const TokenId right = symbols_.find(piece.substr(i));
        if (right != kNoToken) rules.push_back({left, right, rank, id});
      }
    }
    merges_.reserve(rules.size(), model.name);
    for (const auto& rule : rules) merges_.put(rule);
  }

  void encode_word(std::string_view word, std::uint32_t offset, Workspace& work,
                   std::vector<Token>& tokens) const override {
    work.symbols.clear();
    for (std::size_t i = 0; i < word.size();) {
      std::size_t size = 0, looked = 0;
      if (!user_defined_.empty()) {
        size = user_defined_.longest(word.substr(i), looked);
        work.allowance.spend(looked, where());
      }
      const TokenId frozen = size > 0 ? kFrozen : 0;
      if (size == 0) size = utf8_size(word[i]);
      const TokenId id = symbols_.find(word.substr(i, size));
      work.symbols.push_back(
          {id == kNoToken ? unknown() | kFrozen : id | frozen, static_cast<std::uint32_t>(size)});
      i += size;
    }
    merge_symbols(merges_, work);
    for (const auto& symbol : work.symbols) {
      const TokenId id = symbol.id & ~kFrozen;
      tokens.push_back({id < pieces_end_ ? id : unknown(), offset, offset + symbol.size});
      offset += symbol.size;
    }
  }

  // Finding the pairs of a piece is quadratic; sentencepiece trains none of more than 512
  // characters.
  static constexpr std::size_t kLongestPiece = 2048;

  UserDefined user_defined_;
  Vocabulary symbols_;
  TokenId pieces_end_ = 0;
  MergeTable merges_;
};

}  // namespace

std::unique_ptr<const SentencePieceEncoder> make_bpe_encoder(const SentencePieceModel& model,
                                                             const PieceTable& pieces) {
  return std::make_unique<BpeEncoder>(model, pieces);
}

}  // namespace qkv::text
