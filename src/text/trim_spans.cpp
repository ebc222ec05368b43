#include <algorithm>

#include "text/post_processor.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace qkv::text {

OuterSpaces spaces_around(std::string_view token) {
  constexpr char32_t kSpaceOfBytes = 0x120;  // how the byte alphabet writes a space
  const auto is_outer = [&](std::size_t at) {
    const char32_t c = utf8_at(token, at).value;
    return c == kSpaceOfBytes || is_space(c);
  };
  OuterSpaces spaces;
  for (std::size_t i = 0; i < token.size() && is_outer(i); i += utf8_size(token[i])) {
    ++spaces.leading;
  }
  for (std::size_t end = token.size(); end > 0; ++spaces.trailing) {
    end = utf8_before(token, end);
    if (!is_outer(end)) break;
  }
  return spaces;
}

void trim_spans(const PostProcessor::Trim& trim, std::string_view text,
                const std::vector<OuterSpaces>& spaces, std::vector<TokenSpan>& spans) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    TokenSpan& span = spans[i];
    auto [leading, trailing] = spaces[i];
    // A single space at the start may be the one that was added there.
    if ((i == 0 || span.begin == 0) && trim.prefix_space && leading == 1) leading = 0;
    for (; leading > 0 && span.begin < span.end; --leading)
      span.begin += utf8_size(text[span.begin]);
    std::size_t end = span.end;
    for (; trailing > 0 && end > 0; --trailing) end = utf8_before(text, end);
    if (trailing == 0) span.end = std::max(end, span.begin);
  }
}

}  // namespace qkv::text
