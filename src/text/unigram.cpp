#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "text/utf8.h"

namespace qkv::text {

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options,
                 std::string where)
    : vocabulary_(std::move(vocabulary)),
      scores_(std::move(scores)),
      options_(options),
      where_(std::move(where)) {
  std::vector<ByteTrie::Key> keys;
  double worst = std::numeric_limits<double>::infinity();
  for (TokenId id = 0; id < vocabulary_.end(); ++id) {
    worst = std::min(worst, scores_[id]);
    const std::string_view token = vocabulary_.token(id);
    if (vocabulary_.find(token) == id) keys.push_back({token, id});
  }
  unknown_score_ = worst - kUnknownPenalty;
  trie_ = ByteTrie(std::move(keys));
}

void Unigram::find_best(std::string_view word, Workspace& work) const {
  std::vector<Workspace::Best>& best = work.best;
  best.assign(word.size() + 1, {});
  const auto reach = [&](std::size_t end, double score, TokenId id, std::size_t begin) {
    Workspace::Best& target = best[end];
    if (target.begin != Workspace::kUnreached && score <= target.score) return;
    check(id != kNoToken, "{}: a character is not in the vocabulary, and there is no unknown token",
          where_);
    target = {score, id, static_cast<std::uint32_t>(begin)};
  };
  for (std::size_t begin = 0; begin < word.size();) {
    const double score = best[begin].score;
    const std::size_t next = begin + utf8_size(word[begin]);
    bool has_single = false;
    std::uint32_t node = ByteTrie::kRoot;
    std::size_t i = begin;
    for (; i < word.size(); ++i) {
      node = trie_.step(node, static_cast<unsigned char>(word[i]));
      if (node == ByteTrie::kNone) break;
      const std::uint32_t id = trie_.value(node);
      if (id == ByteTrie::kNone) continue;
      reach(i + 1, score + scores_[id], id, begin);
      has_single = has_single || i + 1 == next;
    }
    work.allowance.spend(i - begin, where_);
    if (!has_single) reach(next, score + unknown_score_, options_.unknown, begin);
    begin = next;
  }
}

// A run of unknown characters: their bytes, or one unknown token.
void Unigram::append_unknown(std::string_view word, std::uint32_t begin, std::uint32_t end,
                             std::vector<Token>& tokens) const {
  const std::string_view run = word.substr(begin, end - begin);
  const TokenId known = vocabulary_.find(run);
  if (known == kNoToken && options_.byte_fallback) {
    const auto token = [&](char byte) {
      return vocabulary_.find(byte_token(static_cast<unsigned char>(byte)));
    };
    if (std::ranges::all_of(run, [&](char byte) { return token(byte) != kNoToken; })) {
      // Written from the right, as the way back through the word goes.
      for (std::size_t i = run.size(); i-- > 0;) tokens.push_back({token(run[i]), begin, end});
      return;
    }
  }
  tokens.push_back({known != kNoToken ? known : options_.unknown, begin, end});
}

void Unigram::work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const {
  find_best(word, work);
  const auto first = static_cast<std::ptrdiff_t>(tokens.size());
  for (auto end = static_cast<std::uint32_t>(word.size()); end > 0;) {
    std::uint32_t begin = work.best[end].begin;
    if (work.best[end].id != options_.unknown) {
      tokens.push_back({work.best[end].id, begin, end});
    } else {
      while (begin > 0 && work.best[begin].id == options_.unknown) begin = work.best[begin].begin;
      append_unknown(word, begin, end, tokens);
    }
    end = begin;
  }
  std::reverse(tokens.begin() + first, tokens.end());
}

}  // namespace qkv::text
