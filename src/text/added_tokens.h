// Tokens found in text before anything else is: tokenizer.json's `added_tokens`.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/json.h"
#include "text/allowance.h"
#include "text/byte_trie.h"
#include "text/model.h"
#include "text/normalizer.h"

namespace qkv::text {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;                      // only where no word character is next to it
  bool left_strip = false, right_strip = false;  // takes the spaces beside it along
  bool normalized = true;                        // looked for after normalisation
  bool special = false;                          // left out of decoded text
};

// A set of them to look for.
class TokenFinder {
 public:
  TokenFinder() = default;
  // `where` names the file in messages.
  TokenFinder(const std::vector<AddedToken>& tokens, const std::vector<ByteTrie::Key>& patterns,
              std::string where);

  struct Found {
    Part part;
    const AddedToken* token = nullptr;  // null: text between
  };
  // Appends what the text consists of, from left to right.
  void find(std::string_view text, std::vector<Found>& found, Allowance& allowance) const;
  bool empty() const { return trie_.empty(); }

 private:
  // The longest token that begins the text at `at`, and its end; kNone when none does.
  std::uint32_t longest(std::string_view text, std::size_t at, std::size_t& end,
                        Allowance& allowance) const;

  std::vector<AddedToken> tokens_;
  std::string where_;
  ByteTrie trie_;  // of what to look for, to the index of the token
  bool starts_[256] = {};
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Ids are the model's for tokens it knows, and follow its last one otherwise, whatever the file
  // says.
  AddedTokens(std::vector<AddedToken> tokens, const Model& model, const Normalizer* normalizer,
              const std::string& where);

  static std::vector<AddedToken> read(const Config& config);

  const TokenFinder& in_text() const { return in_text_; }              // before normalisation
  const TokenFinder& in_normalized() const { return in_normalized_; }  // after it
  const AddedToken* find(TokenId id) const;
  const AddedToken* find(std::string_view content) const;
  // How a token reads when it is decoded: the normalizer's form of it, if it has one.
  std::string_view written(const AddedToken& token) const;
  bool is_special(std::string_view token) const { return special_.contains(token); }
  const std::vector<AddedToken>& all() const { return tokens_; }
  TokenId end() const { return end_; }  // one past the last id

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::map<std::string, std::size_t, std::less<>> by_content_;
  std::unordered_map<TokenId, std::string> normalized_;
  std::set<std::string, std::less<>> special_;
  TokenFinder in_text_, in_normalized_;
  TokenId end_ = 0;
};

}  // namespace qkv::text
