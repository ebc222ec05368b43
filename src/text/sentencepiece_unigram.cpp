#include <algorithm>
#include <limits>

#include "text/sentencepiece_encoder.h"
#include "text/unigram.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

using Type = SentencePieceModel::Type;

// The best path through all of the text. The sums are kept in single precision, as sentencepiece
// keeps them: where two ways are almost equal, that decides.
class UnigramEncoder final : public SentencePieceEncoder {
 public:
  UnigramEncoder(const SentencePieceModel& model, const PieceTable& pieces)
      : unknown_(pieces.unknown) {
    float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::min();
    std::vector<ByteTrie::Key> keys;
    for (TokenId id = 0; id < model.pieces.size(); ++id) {
      const auto& piece = model.pieces[id];
      if (piece.type == Type::normal) {
        least = std::min(least, piece.score);
        most = std::max(most, piece.score);
      }
      if (pieces.ordinary.has(id) && piece.type != Type::unused) keys.push_back({piece.text, id});
    }
    unknown_score_ = least - static_cast<float>(kUnknownPenalty);
    scores_.reserve(model.pieces.size());
    for (const auto& piece : model.pieces) {
      // What the user defined is always chosen.
      scores_.push_back(piece.type == Type::user_defined
                            ? static_cast<float>(piece.text.size()) * most - 0.1
                            : static_cast<double>(piece.score));
    }
    trie_ = ByteTrie(std::move(keys));
  }

  void encode(std::string_view text, bool /*spans*/, Workspace& work,
              std::vector<Token>& tokens) const override {
    find_best(text, work.best);
    const auto first = static_cast<std::ptrdiff_t>(tokens.size());
    for (auto end = static_cast<std::uint32_t>(text.size()); end > 0;) {
      const Workspace::Best& best = work.best[end];
      tokens.push_back({best.id, best.begin, end});
      end = best.begin;
    }
    std::reverse(tokens.begin() + first, tokens.end());
  }

 private:
  void find_best(std::string_view text, std::vector<Workspace::Best>& best) const {
    best.assign(text.size() + 1, {});
    const auto reach = [&](std::size_t end, double score, TokenId id, std::size_t begin) {
      Workspace::Best& target = best[end];
      if (target.begin != Workspace::kUnreached && score <= target.score) return;
      target = {static_cast<float>(score), id, static_cast<std::uint32_t>(begin)};
    };
    for (std::size_t begin = 0; begin < text.size();) {
      const double score = best[begin].score;
      const std::size_t next = begin + utf8_size(text[begin]);
      bool has_single = false;
      std::uint32_t node = ByteTrie::kRoot;
      for (std::size_t i = begin; i < text.size(); ++i) {
        node = trie_.step(node, static_cast<unsigned char>(text[i]));
        if (node == ByteTrie::kNone) break;
        const std::uint32_t id = trie_.value(node);
        if (id == ByteTrie::kNone) continue;
        reach(i + 1, scores_[id] + score, id, begin);
        has_single = has_single || i + 1 == next;
      }
      if (!has_single) {
        reach(next, unknown_score_ + static_cast<float>(score), unknown_, begin);
      }
      begin = next;
    }
  }

  ByteTrie trie_;
  std::vector<double> scores_;
  float unknown_score_ = 0;
  TokenId unknown_;
};

}  // namespace

std::unique_ptr<const SentencePieceEncoder> make_unigram_encoder(const SentencePieceModel& model,
                                                                 const PieceTable& pieces) {
  return std::make_unique<UnigramEncoder>(model, pieces);
}

}  // namespace qkv::text
