#include "text/gpt2_words.h"

#include "text/unicode.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

std::size_t contraction(std::string_view text) {  // after the apostrophe
  for (const std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    if (text.starts_with(ending)) return ending.size();
  }
  return 0;
}

struct Kind {
  CharKind kind;
  std::uint32_t size;
};
Kind kind_at(std::string_view text, std::size_t at) {
  const CodePoint c = utf8_at(text, at);
  return {kind_of(c.value), c.size};
}

// The end of the run of one kind that starts before `at`.
std::size_t run_end(std::string_view text, std::size_t at, CharKind kind) {
  while (at < text.size()) {
    const Kind next = kind_at(text, at);
    if (next.kind != kind) break;
    at += next.size;
  }
  return at;
}

std::size_t gpt2_word_end(std::string_view text, std::size_t at) {
  if (text[at] == '\'') {
    if (const std::size_t size = contraction(text.substr(at + 1))) return at + 1 + size;
  }
  const Kind first = kind_at(text, at);
  const std::size_t second = at + first.size;
  if (first.kind != CharKind::space) return run_end(text, second, first.kind);
  if (text[at] == ' ' && second < text.size()) {
    const Kind next = kind_at(text, second);
    if (next.kind != CharKind::space) return run_end(text, second + next.size, next.kind);
  }
  const std::size_t end = run_end(text, second, CharKind::space);
  // The last space before a word is that word's, unless it is the only one.
  return end == text.size() || end == second ? end : utf8_before(text, end);
}

}  // namespace

void append_gpt2_words(std::string_view text, const Part& part, std::vector<Part>& words) {
  const std::string_view inside = text.substr(0, part.end);
  for (std::size_t at = part.begin; at < part.end;) {
    const std::size_t end = gpt2_word_end(inside, at);
    words.push_back({at, end});
    at = end;
  }
}

}  // namespace qkv::text
