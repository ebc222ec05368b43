// Sets of characters, as patterns write them: [^\s\p{L}\p{N}], \d, a.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace qkv::text {

// What \w outside of brackets and \b take as part of a word. Oniguruma counts the superscripts and
// fractions of Latin-1 there, which it does not in [\w] and [^\w].
bool is_word_outside_sets(char32_t c);

// Characters that have a property: of some categories, or one that is not about categories.
struct Property {
  enum class Special : std::uint8_t { none, space, word, word_in_set, han };
  std::uint32_t categories = 0;  // a bit for each Category
  Special special = Special::none;
  bool negated = false;

  bool contains(char32_t c) const;
  friend bool operator==(const Property&, const Property&) = default;
  // "L", "Lu", "Han", ...; false when there is no such name.
  static bool named(std::string_view name, Property& property);
};

class CharClass {
 public:
  void add(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
  void add(const Property& property);
  void add(const CharClass& other);
  void negate() { negated_ = !negated_; }
  void ignore_case();
  void finish();                              // after the last change, before contains
  std::size_t sets() const { return sets_; }  // how many it consists of

  bool contains(char32_t c) const { return c < 128 ? ascii_[c] : contains_slowly(c); }

 private:
  struct Range {
    char32_t first, last;
  };
  bool contains_slowly(char32_t c) const;
  void join_ranges();

  std::vector<Range> ranges_;  // sorted and apart once joined
  std::vector<Property> properties_;
  std::vector<CharClass> inner_;  // negated sets inside of this one
  std::size_t sets_ = 1;
  bool negated_ = false;
  std::array<bool, 128> ascii_{};
};

}  // namespace qkv::text
