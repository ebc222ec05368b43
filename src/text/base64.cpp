#include "text/base64.h"

#include <array>
#include <cstdint>

#include "core/check.h"

namespace qkv::text {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNoDigit = 0xFF;

consteval std::array<std::uint8_t, 256> digit_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (std::size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}
constexpr auto kValues = digit_values();

}  // namespace

std::string decoded_base64(std::string_view text, const std::string& where) {
  check(text.size() % 4 == 0, "{}: {} characters are not base64", where, text.size());
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    for (std::size_t k = i; k < i + 4; ++k) {
      const std::uint8_t digit =
          k >= text.size() - padding ? 0 : kValues[static_cast<unsigned char>(text[k])];
      check(digit != kNoDigit, "{}: character {} is not base64", where, k);
      group = group << 6 | digit;
    }
    for (int shift = 16; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(group >> shift & 0xFF));
    }
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::string encoded_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = i; k < i + 3; ++k) {
      group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0U);
    }
    const std::size_t digits = std::min<std::size_t>(4, bytes.size() - i + 1);
    for (std::size_t k = 0; k < 4; ++k) {
      text.push_back(k < digits ? kDigits[group >> (18 - 6 * k) & 0x3F] : '=');
    }
  }
  return text;
}

}  // namespace qkv::text
