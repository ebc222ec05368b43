#include "io/shown.h"

#include <algorithm>
#include <cstdint>

namespace qkv {
namespace {

struct Utf8Character {
  std::uint32_t code = 0;
  std::size_t size = 0;  // 0 = the text does not begin with a character
};

// The first character of a text that is not empty. Overlong forms and surrogates are no UTF-8.
Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead < 0xc2   ? 0
                           : lead < 0xe0 ? 2
                           : lead < 0xf0 ? 3
                           : lead < 0xf5 ? 4
                                         : 0;
  if (size == 0 || size > text.size()) return {};
  std::uint32_t code = lead & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const std::uint32_t least = size == 2 ? 0x80 : size == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (code < least || code > 0x10ffff || is_surrogate) return {};
  return {code, size};
}

bool is_obeyed(std::uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool turns = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return is_control || turns;
}

std::string without_controls(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character c = first_character(text.substr(at));
    const bool stays = c.size > 0 && (!is_obeyed(c.code) || kept.find(text[at]) != kept.npos);
    const std::size_t size = std::max<std::size_t>(c.size, 1);
    stays ? shown.append(text, at, size) : shown.append(size, '?');
    at += size;
  }
  return shown;
}

}  // namespace

std::string shown_name(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  std::size_t length = name.size();
  if (length > kLongest) {
    length = kLongest;  // and back to the first byte of a UTF-8 sequence, never into one
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) --length;
  }
  return without_controls(name.substr(0, length), "") + (length < name.size() ? "..." : "");
}

std::string shown_text(std::string_view text) { return without_controls(text, "\n\t"); }

}  // namespace qkv
