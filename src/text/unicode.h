// What tokenizers ask about a character. The answers are those of the Hugging Face library, whose
// tables stem from different versions of Unicode; unicode_ages.h has the differences.
#pragma once

#include <cstdint>
#include <string_view>

namespace qkv::text {

enum class Category : std::uint8_t {
  cn,
  lu,
  ll,
  lt,
  lm,
  lo,
  mn,
  mc,
  me,
  nd,
  nl,
  no,
  pc,
  pd,
  ps,
  pe,
  pi,
  pf,
  po,
  sm,
  sc,
  sk,
  so,
  zs,
  zl,
  zp,
  cc,
  cf,
  cs,
  co
};

Category category(char32_t c);  // Unicode 16

bool is_letter(char32_t c);  // \p{L}
bool is_number(char32_t c);  // \p{N}
bool is_space(char32_t c);   // \s, White_Space
bool is_word(char32_t c);    // \w: letters, marks, digits, connectors
inline bool is_mark(char32_t c) {
  return category(c) >= Category::mn && category(c) <= Category::me;
}

bool is_numeric(char32_t c);            // what Digits splits
bool is_punctuation(char32_t c);        // what BertPreTokenizer and Punctuation split
bool is_control(char32_t c);            // what BertNormalizer removes
bool is_nonspacing_mark(char32_t c);    // what its strip_accents removes
bool is_combining_mark(char32_t c);     // what StripAccents removes
bool is_chinese_character(char32_t c);  // what BertNormalizer puts spaces around
bool is_han(char32_t c);                // \p{Han}

// Lowercase of one character; U+0130 alone becomes two, of which the second is U+0307.
char32_t lowercase(char32_t c);

enum class CharKind : std::uint8_t { letter, number, space, other };
// What the pattern of GPT-2 tells apart.
CharKind kind_of(char32_t c);

}  // namespace qkv::text
