// Hashing of short byte strings and of pairs of ids.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace qkv::text {

inline std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93U;
  x ^= x >> 29;
  x *= 0x9E3779B97F4A7C15U;
  return x ^ x >> 32;
}

inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0x9E3779B97F4A7C15U ^ text.size();
  while (text.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93U;
    hash ^= hash >> 32;
    text.remove_prefix(8);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, text.data(), text.size());
  return mixed(hash ^ word);
}

// Throws when a key that was put into a table of which at most half is taken had to pass this many
// others: no accident, but keys chosen so that each passes all before it. `where` names the file.
void check_probes(std::size_t passed, const std::string& where);

}  // namespace qkv::text
