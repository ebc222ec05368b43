// The alphabet of byte-level tokenizers: a printable character for each of the 256 bytes. Bytes
// that print as themselves in Latin-1 do, the others take U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qkv::text {

consteval std::array<char16_t, 256> byte_alphabet() {
  std::array<char16_t, 256> alphabet{};
  char16_t next = 256;
  for (char16_t byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    alphabet[byte] = prints ? byte : next++;
  }
  return alphabet;
}
inline constexpr std::array<char16_t, 256> kByteAlphabet = byte_alphabet();

inline char32_t byte_character(char byte) {
  return kByteAlphabet[static_cast<unsigned char>(byte)];
}
// The byte a character stands for; none when it is not of the alphabet.
std::optional<char> byte_of_character(char32_t c);

std::string bytes_to_alphabet(std::string_view bytes);
// None when a character is not of the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace qkv::text
