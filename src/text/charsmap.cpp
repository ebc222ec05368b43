#include "text/charsmap.h"

#include <cstring>

#include "core/check.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

// A unit of the double array: 0-7 label (with 31 clear), 8 has a value, 9 the offset's scale,
// 10-30 offset; or, in the unit that holds a value, the value in 0-30 with 31 set.
std::uint32_t label(std::uint32_t unit) { return unit & (0x80000000U | 0xFFU); }
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFFFFFFU; }
std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }

std::uint32_t little_endian(const char* at) {
  std::uint32_t result = 0;
  for (int i = 3; i >= 0; --i) result = result << 8 | static_cast<unsigned char>(at[i]);
  return result;
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  if (bytes.empty()) return;
  check(bytes.size() > 4, "{}: {} bytes are too few for rules of normalisation", where,
        bytes.size());
  const std::size_t trie = little_endian(bytes.data());
  check(trie % 4 == 0 && trie >= 4 && trie <= bytes.size() - 4,
        "{}: a trie of {} bytes does not fit in {}", where, trie, bytes.size());
  units_.resize(trie / 4);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units_[i] = little_endian(bytes.data() + 4 + 4 * i);
  }
  replacements_ = bytes.substr(4 + trie);
  check(is_valid_utf8(replacements_), "{}: the replacements are not UTF-8", where);
  find_touched();
}

// How many bytes it looked at.
template <class Found>
std::size_t Charsmap::walk(std::string_view text, Found&& found) const {
  if (units_.empty()) return 0;
  std::size_t node = offset(units_[0]);
  std::size_t i = 0;
  for (; i < text.size() && text[i] != 0; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) break;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= units_.size() || !found(i + 1, value(units_[node]))) break;
  }
  return i;
}

std::string_view Charsmap::replacement(std::uint32_t at) const {
  if (at >= replacements_.size()) return {};
  const std::string_view rest = std::string_view(replacements_).substr(at);
  // A value that points into the middle of a character is nothing a builder writes.
  if ((static_cast<unsigned char>(rest[0]) & 0xC0) == 0x80) return {};
  return rest.substr(0, rest.find('\0'));
}

Charsmap::Rule Charsmap::longest(std::string_view text, std::size_t& looked) const {
  Rule rule;
  std::uint32_t at = 0;
  looked += walk(text, [&](std::size_t size, std::uint32_t value) {
    rule.size = size;
    at = value;
    return true;
  });
  if (rule.size > 0) rule.replacement = replacement(at);
  return rule;
}

Charsmap::Rule Charsmap::shortest(std::string_view text) const {
  Rule rule;
  walk(text, [&](std::size_t size, std::uint32_t value) {
    rule = {size, replacement(value)};
    return false;
  });
  return rule;
}

void Charsmap::find_touched() {
  for (unsigned first = 1; first < 128; ++first) {
    std::size_t node = offset(units_[0]) ^ first;
    if (node >= units_.size() || label(units_[node]) != first) continue;
    touched_[first] = has_value(units_[node]);
    node ^= offset(units_[node]);
    for (unsigned second = 1; second < 128; ++second) {
      const std::size_t next = node ^ second;
      if (next < units_.size() && label(units_[next]) == second) {
        touched_pairs_[first * 2 + second / 64] |= std::uint64_t{1} << second % 64;
      }
    }
  }
}

}  // namespace qkv::text
