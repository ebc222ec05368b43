// WordPiece: the longest token that begins a word, then the longest that continues it.
#pragma once

#include <string>

#include "text/byte_trie.h"
#include "text/cached_model.h"

namespace qkv::text {

struct WordPieceOptions {
  std::string unknown = "[UNK]";
  std::string prefix = "##";       // of tokens that continue a word
  std::size_t longest_word = 100;  // in characters; a longer one is unknown
};

class WordPiece final : public CachedModel {
 public:
  // `where` names the file in messages.
  WordPiece(Vocabulary vocabulary, WordPieceOptions options, std::string where);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  TokenId unknown() const override { return unknown_; }
  std::string kind() const override { return "WordPiece"; }

 protected:
  void work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const override;

 private:
  Vocabulary vocabulary_;
  WordPieceOptions options_;
  std::string where_;
  TokenId unknown_;
  ByteTrie beginnings_, continuations_;
};

// WordLevel: words that are tokens as a whole.
class WordLevel final : public Model {
 public:
  WordLevel(Vocabulary vocabulary, const std::string& unknown, std::string where)
      : vocabulary_(std::move(vocabulary)),
        unknown_(vocabulary_.find(unknown)),
        where_(std::move(where)) {}

  void tokenize(std::string_view word, bool spans, Workspace& work,
                std::vector<Token>& tokens) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  TokenId unknown() const override { return unknown_; }
  std::string kind() const override { return "WordLevel"; }

 private:
  Vocabulary vocabulary_;
  TokenId unknown_;
  std::string where_;
};

}  // namespace qkv::text
