#include "viewer/spelling.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace qkv::viewer {
namespace {

std::int64_t width_of(char32_t code) {
  return std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(code)));
}

// Control characters, and those that turn the direction of a line or cannot be seen.
bool is_hidden(char32_t code) {
  const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

}  // namespace

std::string printable(std::string_view given) {
  std::string text = text::repaired_utf8(given);
  const auto space = [](char c) { return c == ' '; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), space));
  while (!text.empty() && text.back() == ' ') text.pop_back();
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const text::CodePoint point = text::utf8_at(text, at);
    if (point.value == '\n') {
      shown += "⏎";
    } else if (point.value == '\t') {
      shown += "⇥";
    } else if (is_hidden(point.value)) {
      shown += "�";
    } else {
      shown.append(text, at, point.size);
    }
    at += point.size;
  }
  return shown.empty() ? "␣" : shown;
}

std::int64_t columns_of(std::string_view text) {
  std::int64_t columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const text::CodePoint point = text::utf8_at(text, at);
    columns += width_of(point.value);
    at += point.size;
  }
  return columns;
}

std::string fitted(std::string_view text, std::int64_t columns) {
  const bool cut = columns_of(text) > columns;
  const std::int64_t room = cut ? columns - 1 : columns;
  std::string shown;
  std::int64_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const text::CodePoint point = text::utf8_at(text, at);
    if (used + width_of(point.value) > room) break;
    used += width_of(point.value);
    shown.append(text, at, point.size);
    at += point.size;
  }
  if (cut) shown += "…";
  return shown + std::string(static_cast<std::size_t>(columns - used - (cut ? 1 : 0)), ' ');
}

std::vector<SeenToken> spelt(const std::vector<std::int64_t>& ids,
                             const std::function<std::string(std::int64_t)>& name) {
  std::vector<SeenToken> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) tokens.push_back({id, printable(name(id))});
  return tokens;
}

TokenSpelling complete(const TokenSpelling& given) {
  const auto number = [](std::int64_t id) { return std::to_string(id); };
  TokenSpelling all = given;
  if (!all.input) all.input = number;
  if (!all.output) all.output = number;
  return all;
}

}  // namespace qkv::viewer
