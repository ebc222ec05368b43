// The four normalisation forms of Unicode, with Unicode 9's decompositions.
#pragma once

#include <cstdint>

#include "text/aligned_text.h"

namespace qkv::text {

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };

void normalize(NormalForm form, const AlignedText& old, AlignedText& result);

// True when every form leaves the character alone wherever it stands: ASCII.
inline bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<signed char>(c) < 0) return false;
  }
  return true;
}

}  // namespace qkv::text
