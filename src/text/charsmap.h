// The rules of sentencepiece's normalizer: a double-array trie of UTF-8 strings whose values point
// into a list of replacements, as `precompiled_charsmap` stores them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::text {

class Charsmap {
 public:
  Charsmap() = default;  // without rules
  // Throws Error when the bytes are not a charsmap; `where` names them in the message.
  Charsmap(std::string_view bytes, const std::string& where);

  struct Rule {
    std::size_t size = 0;  // bytes of the text it matched; 0: none
    std::string_view replacement;
  };
  // Adds to `looked` how many bytes it looked at: a trie that leads back to itself has no end.
  Rule longest(std::string_view text, std::size_t& looked) const;
  Rule shortest(std::string_view text) const;
  bool empty() const { return units_.empty(); }
  // True when no rule can apply to `first` followed by `second`, both ASCII.
  bool leaves_alone(unsigned char first, unsigned char second) const {
    return !touched_[first] && (touched_pairs_[first * 2U + second / 64U] >> second % 64U & 1) == 0;
  }

 private:
  template <class Found>
  std::size_t walk(std::string_view text, Found&& found) const;
  std::string_view replacement(std::uint32_t at) const;
  void find_touched();

  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with NUL
  bool touched_[128] = {};    // a rule starts with this character alone
  std::uint64_t touched_pairs_[256] = {};
};

}  // namespace qkv::text
