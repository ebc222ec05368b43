#include "text/wordpiece.h"

#include "core/check.h"
#include "io/shown.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

std::uint32_t size_of(std::string_view word) { return static_cast<std::uint32_t>(word.size()); }

// The longest string of the trie that begins `text`, and its value.
struct Longest {
  std::size_t size = 0, looked = 0;  // bytes: of it, and looked at
  std::uint32_t value = ByteTrie::kNone;
};
Longest longest_prefix(const ByteTrie& trie, std::string_view text) {
  Longest found;
  std::uint32_t node = ByteTrie::kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = trie.step(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNone) break;
    found.looked = i + 1;
    if (const std::uint32_t value = trie.value(node); value != ByteTrie::kNone) {
      found.size = i + 1;
      found.value = value;
    }
  }
  return found;
}

}  // namespace

WordPiece::WordPiece(Vocabulary vocabulary, WordPieceOptions options, std::string where)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      where_(std::move(where)),
      unknown_(vocabulary_.find(options_.unknown)) {
  std::vector<ByteTrie::Key> beginnings, continuations;
  for (TokenId id = 0; id < vocabulary_.end(); ++id) {
    const std::string_view token = vocabulary_.token(id);
    if (!vocabulary_.has(id) || vocabulary_.find(token) != id) continue;
    beginnings.push_back({token, id});
    if (!token.starts_with(options_.prefix)) continue;
    continuations.push_back({token.substr(options_.prefix.size()), id});
  }
  beginnings_ = ByteTrie(std::move(beginnings));
  continuations_ = ByteTrie(std::move(continuations));
}

void WordPiece::work_out(std::string_view word, Workspace& work, std::vector<Token>& tokens) const {
  const std::size_t before = tokens.size();
  std::size_t at = 0;
  if (utf8_length(word) <= options_.longest_word) {
    while (at < word.size()) {
      const Longest next = longest_prefix(at == 0 ? beginnings_ : continuations_, word.substr(at));
      work.allowance.spend(next.looked, where_);
      if (next.size == 0) break;
      const auto begin = static_cast<std::uint32_t>(at);
      at += next.size;
      tokens.push_back({next.value, begin, static_cast<std::uint32_t>(at)});
    }
  }
  if (at == word.size()) return;
  check(unknown_ != kNoToken, "{}: the unknown token '{}' is not in the vocabulary", where_,
        shown_name(options_.unknown));
  tokens.resize(before);
  tokens.push_back({unknown_, 0, size_of(word)});
}

void WordLevel::tokenize(std::string_view word, bool /*spans*/, Workspace& /*work*/,
                         std::vector<Token>& tokens) const {
  const TokenId id = vocabulary_.find(word);
  check(id != kNoToken || unknown_ != kNoToken,
        "{}: a word is not in the vocabulary, and neither is an unknown token", where_);
  tokens.push_back({id != kNoToken ? id : unknown_, 0, size_of(word)});
}

}  // namespace qkv::text
