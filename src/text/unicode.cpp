#include "text/unicode.h"

#include <utf8proc.h>

#include <array>

#include "text/unicode_ages.h"

namespace qkv::text {
namespace {

static_assert(UTF8PROC_CATEGORY_CO == static_cast<int>(Category::co));
static_assert(UTF8PROC_CATEGORY_LU == static_cast<int>(Category::lu));

constexpr bool between(char32_t c, char32_t first, char32_t last) {
  return c >= first && c <= last;
}
constexpr bool is_within(Category c, Category first, Category last) {
  return c >= first && c <= last;
}

bool is_ascii_punctuation(char32_t c) {
  return between(c, '!', '/') || between(c, ':', '@') || between(c, '[', '`') ||
         between(c, '{', '~');
}

consteval std::array<CharKind, 128> ascii_kinds() {
  std::array<CharKind, 128> kinds{};
  for (char32_t c = 0; c < 128; ++c) {
    const bool letter = between(c, 'a', 'z') || between(c, 'A', 'Z');
    const bool space = c == ' ' || between(c, 9, 13);
    kinds[c] = letter                 ? CharKind::letter
               : between(c, '0', '9') ? CharKind::number
               : space                ? CharKind::space
                                      : CharKind::other;
  }
  return kinds;
}
constexpr auto kKinds = ascii_kinds();

}  // namespace

Category category(char32_t c) {
  const auto known = static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  return known == Category::cn ? category_since_15(c) : known;
}

bool is_letter(char32_t c) { return is_within(category(c), Category::lu, Category::lo); }
bool is_number(char32_t c) { return is_within(category(c), Category::nd, Category::no); }

bool is_space(char32_t c) {
  if (c < 0x80) return kKinds[c] == CharKind::space;
  return c == 0x85 || c == 0xA0 || c == 0x1680 || between(c, 0x2000, 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  const Category kind = category(c);
  // The circled and squared letters are alphabetic by property, not by category.
  return is_within(kind, Category::lu, Category::nl) || kind == Category::pc ||
         between(c, 0x24B6, 0x24E9) || between(c, 0x1F130, 0x1F149) ||
         between(c, 0x1F150, 0x1F169) || between(c, 0x1F170, 0x1F189);
}

bool is_numeric(char32_t c) {  // Unicode 17 here
  return is_number(c) || between(c, 0x11DE0, 0x11DE9) || between(c, 0x16FF4, 0x16FF6);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return is_ascii_punctuation(c);
  if (c == 0x166D || c == 0x111C9) return true;  // another category since Unicode 8
  return is_within(category(c), Category::pc, Category::po) && !is_punctuation_since_8(c) &&
         category_since_15(c) == Category::cn;
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const Category kind = category(c);
  return (kind == Category::cc || kind == Category::cf || kind == Category::co) &&
         !is_format_since_8(c);
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1734) return true;  // spacing since Unicode 14
  return category(c) == Category::mn && !is_nonspacing_since_8(c) &&
         category_since_15(c) == Category::cn;
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // letters since Unicode 12
  return is_mark(c) && !is_mark_since_9(c) && category_since_15(c) == Category::cn;
}

bool is_chinese_character(char32_t c) {
  return c >= 0x3400 && (between(c, 0x4E00, 0x9FFF) || between(c, 0x3400, 0x4DBF) ||
                         between(c, 0x20000, 0x2A6DF) || between(c, 0x2A700, 0x2B81F) ||
                         between(c, 0x2B920, 0x2CEAF) || between(c, 0xF900, 0xFAFF) ||
                         between(c, 0x2F800, 0x2FA1F));
}

bool is_han(char32_t c) {
  return c >= 0x2E80 &&
         (between(c, 0x2E80, 0x2E99) || between(c, 0x2E9B, 0x2EF3) || between(c, 0x2F00, 0x2FD5) ||
          c == 0x3005 || c == 0x3007 || between(c, 0x3021, 0x3029) || between(c, 0x3038, 0x303B) ||
          between(c, 0x3400, 0x4DBF) || between(c, 0x4E00, 0x9FFF) || between(c, 0xF900, 0xFA6D) ||
          between(c, 0xFA70, 0xFAD9) || between(c, 0x16FE2, 0x16FE3) ||
          between(c, 0x16FF0, 0x16FF1) || between(c, 0x20000, 0x2A6DF) ||
          between(c, 0x2A700, 0x2B739) || between(c, 0x2B740, 0x2B81D) ||
          between(c, 0x2B820, 0x2CEA1) || between(c, 0x2CEB0, 0x2EBE0) ||
          between(c, 0x2EBF0, 0x2EE5D) || between(c, 0x2F800, 0x2FA1D) ||
          between(c, 0x30000, 0x3134A) || between(c, 0x31350, 0x323AF));
}

char32_t lowercase(char32_t c) {
  if (c < 0x80) return between(c, 'A', 'Z') ? c + 32 : c;
  switch (c) {  // what utf8proc leaves out, and what Unicode 16 and 17 added
    case 0x130: return 'i';
    case 0x1C89: return 0x1C8A;
    case 0xA7CB: return 0x264;
    case 0xA7DC: return 0x19B;
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA: return c + 1;
    default: break;
  }
  if (between(c, 0x10D50, 0x10D65)) return c + 0x20;
  if (between(c, 0x16EA0, 0x16EB8)) return c + 0x1B;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

CharKind kind_of(char32_t c) {
  if (c < 0x80) return kKinds[c];
  const Category kind = category(c);
  if (is_within(kind, Category::lu, Category::lo)) return CharKind::letter;
  if (is_within(kind, Category::nd, Category::no)) return CharKind::number;
  return is_space(c) ? CharKind::space : CharKind::other;
}

}  // namespace qkv::text
