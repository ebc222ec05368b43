#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace qkv::text {
namespace {

constexpr std::int16_t kNoByte = -1;
constexpr std::size_t kAlphabetEnd = 256 + 68;  // 68 bytes do not print

consteval std::array<std::int16_t, kAlphabetEnd> inverse() {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  bytes.fill(kNoByte);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    bytes[kByteAlphabet[byte]] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}
constexpr auto kInverse = inverse();

}  // namespace

std::optional<char> byte_of_character(char32_t c) {
  if (c >= kAlphabetEnd || kInverse[c] == kNoByte) return {};
  return static_cast<char>(kInverse[c]);
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, byte_character(byte));
  return text;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = utf8_at(text, i);
    const auto byte = byte_of_character(c.value);
    if (!byte) return {};
    bytes.push_back(*byte);
    i += c.size;
  }
  return bytes;
}

}  // namespace qkv::text
