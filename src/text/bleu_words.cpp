// The words that BLEU counts: what sacreBLEU does to a line before it counts.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/check.h"
#include "qkv/bleu.h"
#include "text/replace.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace qkv {
namespace {

using text::Category;
using text::category;

std::u32string code_points(std::string_view line) {
  const std::string valid = text::repaired_utf8(line);
  std::u32string points;
  for (std::size_t at = 0; at < valid.size();) {
    const text::CodePoint point = text::utf8_at(valid, at);
    points += point.value;
    at += point.size;
  }
  return points;
}

// str.isspace() of Python: White_Space and the four separators of ASCII.
bool is_python_space(char32_t c) { return (c >= 0x1C && c <= 0x1F) || text::is_space(c); }

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_stop(char32_t c) { return c == '.' || c == ','; }
bool is_dash(char32_t c) { return c == '-'; }
bool is_v13a_symbol(char32_t c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}
bool is_in(char32_t c, Category first, Category last) {
  const Category found = category(c);
  return found >= first && found <= last;
}
bool is_any_number(char32_t c) { return is_in(c, Category::nd, Category::no); }
bool is_any_punctuation(char32_t c) { return is_in(c, Category::pc, Category::po); }
bool is_any_symbol(char32_t c) { return is_in(c, Category::sm, Category::so); }

// Python's re.sub of one character: " \1 ".
template <class Is>
std::u32string with_spaces_around(const std::u32string& line, Is is) {
  std::u32string result;
  for (const char32_t c : line) {
    if (is(c)) {
      result += {U' ', c, U' '};
    } else {
      result += c;
    }
  }
  return result;
}

// Python's re.sub of two neighbours: a character belongs to one match at most. `before` puts the
// spaces around the first of the two, else they are around the second.
template <class First, class Second>
std::u32string with_spaces_between(const std::u32string& line, bool before, First first,
                                   Second second) {
  std::u32string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (i + 1 == line.size() || !first(line[i]) || !second(line[i + 1])) {
      result += line[i];
      continue;
    }
    if (before) {
      result += {U' ', line[i], U' ', line[i + 1]};
    } else {
      result += {line[i], U' ', line[i + 1], U' '};
    }
    ++i;
  }
  return result;
}

// mteval-v13a.pl: meant for Western languages, and the same for every other.
std::u32string spaced_v13a(std::u32string line) {
  constexpr std::array<std::pair<std::u32string_view, std::u32string_view>, 7> kReplaced{
      {{U"<skipped>", U""},
       {U"-\n", U""},
       {U"\n", U" "},
       {U"&quot;", U"\""},
       {U"&amp;", U"&"},
       {U"&lt;", U"<"},
       {U"&gt;", U">"}}};
  for (const auto& [from, to] : kReplaced) text::replace_all(line, from, to);
  const auto other = [](char32_t c) { return !is_digit(c); };
  line = with_spaces_around(U' ' + line + U' ', is_v13a_symbol);
  line = with_spaces_between(line, false, other, is_stop);
  line = with_spaces_between(line, true, is_stop, other);
  return with_spaces_between(line, false, is_digit, is_dash);
}

// mteval-v14.pl --international-tokenization.
std::u32string spaced_international(std::u32string line) {
  const auto other = [](char32_t c) { return !is_any_number(c); };
  line = with_spaces_between(line, false, other, is_any_punctuation);
  line = with_spaces_between(line, true, is_any_punctuation, other);
  return with_spaces_around(line, is_any_symbol);
}

std::u32string spaced(std::u32string line, BleuTokenizer tokenizer) {
  switch (tokenizer) {
    case BleuTokenizer::v13a: return spaced_v13a(std::move(line));
    case BleuTokenizer::international: return spaced_international(std::move(line));
    case BleuTokenizer::characters: return with_spaces_around(line, [](char32_t) { return true; });
    default: return line;
  }
}

// Passed over when one asks whether a sigma ends its word (Case_Ignorable).
bool is_case_ignorable(char32_t c) {
  constexpr std::u32string_view kInsideWords =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  const Category found = category(c);
  return found == Category::mn || found == Category::me || found == Category::cf ||
         found == Category::lm || found == Category::sk ||
         kInsideWords.find(c) != kInsideWords.npos;
}

// Cased: letters that have case, Roman numerals and circled letters.
bool is_cased(char32_t c) {
  return is_in(c, Category::lu, Category::lt) || (c >= 0x2160 && c <= 0x217F) ||
         (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F189);
}

bool ends_word(const std::u32string& line, std::size_t at) {
  std::size_t before = at, after = at + 1;
  while (before > 0 && is_case_ignorable(line[before - 1])) --before;
  while (after < line.size() && is_case_ignorable(line[after])) ++after;
  return before > 0 && is_cased(line[before - 1]) &&
         (after == line.size() || !is_cased(line[after]));
}

// str.lower() of Python, that of Unicode: a sigma at the end of a word is another letter.
std::u32string python_lowercase(const std::u32string& line) {
  std::u32string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char32_t c = line[i];
    if (c == U'\u03A3' && ends_word(line, i)) {
      result += U'\u03C2';
    } else if (c == U'\u0130') {
      result += U"i\u0307";
    } else {
      result += text::lowercase(c);
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> bleu_words(const std::string& line, const BleuOptions& options) {
  std::u32string points = code_points(line);
  if (options.lowercase) points = python_lowercase(points);
  while (!points.empty() && is_python_space(points.back())) points.pop_back();
  std::vector<std::string> words;
  bool inside = false;
  for (const char32_t c : spaced(std::move(points), options.tokenizer)) {
    const bool is_word = !is_python_space(c);
    if (is_word && !inside) words.emplace_back();
    if (is_word) text::append_utf8(words.back(), c);
    inside = is_word;
  }
  return words;
}

std::string to_string(BleuTokenizer tokenizer) {
  switch (tokenizer) {
    case BleuTokenizer::v13a: return "13a";
    case BleuTokenizer::international: return "intl";
    case BleuTokenizer::characters: return "char";
    default: return "none";
  }
}

BleuTokenizer bleu_tokenizer_from_string(const std::string& name) {
  for (const BleuTokenizer tokenizer : {BleuTokenizer::v13a, BleuTokenizer::international,
                                        BleuTokenizer::characters, BleuTokenizer::none}) {
    if (name == to_string(tokenizer)) return tokenizer;
  }
  fail("there is no BLEU tokenizer '{}'; there are 13a, intl, char and none", name);
}

}  // namespace qkv
