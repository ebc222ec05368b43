#include <algorithm>
#include <limits>

#include "text/sentencepiece_encoder.h"
#include "text/unigram.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

using Type = SentencePieceModel::Type;

// The best path through all of a text. Sums have single precision, and begin anew when they grow
// large, as in sentencepiece: where two ways are almost equal, that decides.
class UnigramEncoder final : public SentencePieceEncoder {
 public:
  UnigramEncoder(const SentencePieceModel& model, const PieceTable& pieces)
      : SentencePieceEncoder(model, pieces, false) {
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
      longest_ = std::max(longest_, piece.text.size());
      // What the user defined is always chosen.
      const double always = static_cast<float>(piece.text.size()) * most - 0.1;
      scores_.push_back(piece.type == Type::user_defined ? static_cast<float>(always)
                                                         : piece.score);
    }
    trie_ = ByteTrie(std::move(keys));
  }

 private:
  void encode_word(std::string_view text, std::uint32_t offset, Workspace& work,
                   std::vector<Token>& tokens) const override {
    find_best(text, work);
    const auto first = static_cast<std::ptrdiff_t>(tokens.size());
    for (auto end = static_cast<std::uint32_t>(text.size()); end > 0;) {
      const Workspace::Best& best = work.best[end];
      tokens.push_back({best.id, offset + best.begin, offset + end});
      end = best.begin;
    }
    std::reverse(tokens.begin() + first, tokens.end());
  }

  void find_best(std::string_view text, Workspace& work) const {
    std::vector<Workspace::Best>& best = work.best;
    best.assign(text.size() + 1, {});
    const auto reach = [&](std::size_t end, float score, TokenId id, std::size_t begin) {
      Workspace::Best& target = best[end];
      if (target.begin != Workspace::kUnreached && score <= static_cast<float>(target.score))
        return;
      target = {score, id, static_cast<std::uint32_t>(begin)};
    };
    for (std::size_t begin = 0; begin < text.size();) {
      if (best[begin].score < kLowestSum) {
        const std::size_t end = std::min(best.size(), begin + longest_ + 1);
        work.allowance.spend(end - begin, where());
        begin_anew(best, begin, end);
      }
      const auto score = static_cast<float>(best[begin].score);
      const std::size_t next = begin + utf8_size(text[begin]);
      bool has_single = false;
      std::uint32_t node = ByteTrie::kRoot;
      std::size_t i = begin;
      for (; i < text.size(); ++i) {
        node = trie_.step(node, static_cast<unsigned char>(text[i]));
        if (node == ByteTrie::kNone) break;
        const std::uint32_t id = trie_.value(node);
        if (id == ByteTrie::kNone) continue;
        reach(i + 1, score + scores_[id], id, begin);
        has_single = has_single || i + 1 == next;
      }
      work.allowance.spend(i - begin, where());
      if (!has_single) reach(next, score + unknown_score_, unknown(), begin);
      begin = next;
    }
  }

  // Sums from here on are differences to the one at `at`.
  static void begin_anew(std::vector<Workspace::Best>& best, std::size_t at, std::size_t end) {
    const auto base = static_cast<float>(best[at].score);
    for (std::size_t i = at; i < end; ++i) {
      if (i == at || best[i].begin != Workspace::kUnreached) {
        best[i].score = static_cast<float>(best[i].score) - base;
      }
    }
  }

  static constexpr float kLowestSum = -100'000;
  ByteTrie trie_;
  std::vector<float> scores_;
  float unknown_score_ = 0;
  std::size_t longest_ = 4;  // bytes of a piece or a character
};

}  // namespace

std::unique_ptr<const SentencePieceEncoder> make_unigram_encoder(const SentencePieceModel& model,
                                                                 const PieceTable& pieces) {
  return std::make_unique<UnigramEncoder>(model, pieces);
}

}  // namespace qkv::text
