// The normalizer of sentencepiece: rules of a charsmap, and what becomes of spaces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/allowance.h"
#include "text/byte_trie.h"
#include "text/charsmap.h"
#include "text/sentencepiece_model.h"

namespace qkv::text {

// Strings that the user defined: they are found first and left as they are.
class UserDefined {
 public:
  UserDefined() = default;
  explicit UserDefined(const SentencePieceModel& model);
  // The bytes of the longest one that begins the text; 0 when none does. Adds to `looked` how many
  // bytes it looked at.
  std::size_t longest(std::string_view text, std::size_t& looked) const;
  bool empty() const { return trie_.empty(); }

 private:
  ByteTrie trie_;
};

struct NormalizedText {
  std::string text;
  std::vector<std::uint32_t> from;  // for each byte and the end, where it came from; if asked for
};

class SentencePieceNormalizer {
 public:
  SentencePieceNormalizer() = default;
  // Of a model's normalizer or denormalizer.
  SentencePieceNormalizer(const SentencePieceModel& model,
                          const SentencePieceModel::Normalization& normalization);

  // `text` is valid UTF-8. Throws Error when the rules take more work or text than is allowed.
  void apply(std::string_view text, bool origins, NormalizedText& result,
             Allowance& allowance) const;

 private:
  struct Prefix {
    std::string_view normalized;
    std::size_t size = 0;  // bytes of the text
  };
  Prefix prefix(std::string_view text, Allowance& allowance) const;

  std::string where_;  // the rules, for messages
  Charsmap rules_;
  UserDefined user_defined_;
  bool add_dummy_prefix_ = true, remove_extra_spaces_ = true, space_is_suffix_ = false;
  std::string space_;  // what a space becomes
};

}  // namespace qkv::text
