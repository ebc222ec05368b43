// UTF-8, one code point at a time. Everything behind the tokenizer's door works on valid text:
// repair() stands at the door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qkv::text {

struct CodePoint {
  char32_t value = 0;
  std::uint32_t size = 0;  // bytes it was written in
};

// The number of bytes of the code point that starts with `lead`, in valid text.
inline std::uint32_t utf8_size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point at `at`, which must be the start of one in valid text.
inline CodePoint utf8_at(const char* at) {
  const auto byte = [at](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(at[i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}
inline CodePoint utf8_at(std::string_view text, std::size_t i) { return utf8_at(text.data() + i); }

// The start of the code point that ends before `end`, in valid text.
inline std::size_t utf8_before(std::string_view text, std::size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

void append_utf8(std::string& text, char32_t code);
inline std::string to_utf8(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

// The number of code points in valid text.
std::size_t utf8_length(std::string_view text);

// How many bytes from the start are one code point (valid), or the longest start of one that
// never becomes one (not valid): what Unicode recommends to replace by a single U+FFFD.
struct Utf8Step {
  std::size_t size = 0;
  bool valid = false;
};
Utf8Step utf8_step(std::string_view text);

// Where the first byte that is not valid UTF-8 stands; the size of the text when all is.
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
// The text with U+FFFD for what is not valid in it.
std::string repaired_utf8(std::string_view text);

}  // namespace qkv::text
