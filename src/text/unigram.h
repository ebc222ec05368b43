// Unigram: of all ways to cut a word into tokens, the most probable.
#pragma once

#include <string>
#include <vector>

#include "text/byte_trie.h"
#include "text/cached_model.h"

namespace qkv::text {

struct UnigramOptions {
  TokenId unknown = kNoToken;
  bool byte_fallback = false;
};

class Unigram final : public CachedModel {
 public:
  // A score, the logarithm of its probability, for each id; `where` names the file in messages.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options,
          std::string where);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  TokenId unknown() const override { return options_.unknown; }
  std::string kind() const override { return "Unigram"; }
  const std::vector<double>& scores() const { return scores_; }

 protected:
  void work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const override;

 private:
  void find_best(std::string_view word, Workspace& work) const;
  void append_unknown(std::string_view word, std::uint32_t begin, std::uint32_t end,
                      std::vector<Token>& tokens) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  UnigramOptions options_;
  std::string where_;
  ByteTrie trie_;
  double unknown_score_ = 0;
};

// How much worse than the worst token an unknown character is.
inline constexpr double kUnknownPenalty = 10;

}  // namespace qkv::text
