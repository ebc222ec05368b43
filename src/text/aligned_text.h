// Text on its way through normalisation that remembers, when asked to, where it came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace qkv::text {

// Bytes [begin, end) of the text that was given.
struct Origin {
  std::uint32_t begin = 0, end = 0;
};

struct AlignedText {
  std::string text;
  std::vector<Origin> from;  // of every byte; empty when nobody asked
  bool tracked = false;

  void clear() {
    text.clear();
    from.clear();
  }
  // Appends part of a text that was given, starting at byte `at` of it; not valid UTF-8 is
  // repaired.
  void append_given(std::string_view part, std::size_t at);
  void append(std::string_view bytes, Origin origin) {
    text += bytes;
    if (tracked) from.insert(from.end(), bytes.size(), origin);
  }
  void append(const AlignedText& other, std::size_t begin, std::size_t end) {
    text.append(other.text, begin, end - begin);
    if (tracked) {
      const auto at = other.from.begin();
      from.insert(from.end(), at + static_cast<std::ptrdiff_t>(begin),
                  at + static_cast<std::ptrdiff_t>(end));
    }
  }
};

// Writes a text anew from left to right. Each character put replaces the next one of the old text,
// or is added after it, or replaces it together with some that follow: so it finds its origin.
class Rewriter {
 public:
  explicit Rewriter(const AlignedText& old, AlignedText& result) : old_(old), result_(result) {
    result_.clear();
    result_.tracked = old.tracked;
    result_.text.reserve(old.text.size());
  }

  void replace(char32_t c) {
    const std::size_t at = result_.text.size();
    append_utf8(result_.text, c);
    if (result_.tracked) {
      result_.from.insert(result_.from.end(), result_.text.size() - at, origin(next_));
      skip(1);
    }
  }
  void add(char32_t c) {  // belongs to the character before it
    const std::size_t at = result_.text.size();
    append_utf8(result_.text, c);
    if (result_.tracked) {
      const Origin before = next_ == 0 ? Origin{} : origin(next_ - 1);
      result_.from.insert(result_.from.end(), result_.text.size() - at, before);
    }
  }
  // Passes over characters of the old text.
  void skip(std::size_t characters) {
    if (!result_.tracked) return;
    for (; characters > 0 && next_ < old_.text.size(); --characters) {
      next_ += utf8_size(old_.text[next_]);
    }
  }
  // change 0 replaces, 1 adds, below 0 replaces and passes over that many.
  void put(char32_t c, int change) {
    if (change > 0) return add(c);
    replace(c);
    skip(static_cast<std::size_t>(-change));
  }

 private:
  Origin origin(std::size_t byte) const {
    return byte < old_.from.size() ? old_.from[byte] : Origin{};
  }

  const AlignedText& old_;
  AlignedText& result_;
  std::size_t next_ = 0;  // byte of the old text
};

}  // namespace qkv::text
