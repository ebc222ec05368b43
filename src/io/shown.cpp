#include "io/shown.h"

namespace qkv {

std::string shown_name(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  std::size_t length = name.size();
  if (length > kLongest) {
    length = kLongest;  // and back to the first byte of a UTF-8 sequence, never into one
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) --length;
  }
  std::string text(name.substr(0, length));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // 0xc2 0x80 to 0xc2 0x9f are control characters in UTF-8, too.
    const bool pair =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (pair) text[i + 1] = '?';
    if (byte < 0x20 || byte == 0x7f || pair) text[i] = '?';
  }
  return length < name.size() ? text + "..." : text;
}

}  // namespace qkv
