// A trie of byte strings in a double array: a step is one load and one comparison.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv::text {

class ByteTrie {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  using Key = std::pair<std::string_view, std::uint32_t>;  // a string that is not empty, its value

  ByteTrie() = default;
  explicit ByteTrie(std::vector<Key> keys);  // of equal strings the last one counts

  static constexpr std::uint32_t kRoot = 0;
  // The node a byte leads to, kNone when there is none.
  std::uint32_t step(std::uint32_t node, unsigned char byte) const {
    const std::uint32_t next = units_[node].base ^ byte;
    return units_[next].parent == node ? next : kNone;
  }
  std::uint32_t value(std::uint32_t node) const { return units_[node].value; }  // kNone: no string
  bool empty() const { return units_.empty(); }

 private:
  struct Unit {
    std::uint32_t base = 0, parent = kNone, value = kNone;
  };
  std::vector<Unit> units_;  // always whole blocks of 256, so that base ^ byte stays inside

  friend class ByteTrieBuilder;
};

}  // namespace qkv::text
