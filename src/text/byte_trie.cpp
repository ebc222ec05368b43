#include "text/byte_trie.h"

#include <algorithm>
#include <cstddef>

namespace qkv::text {

// Places the children of one node after the other, broadest first within the last few blocks that
// still have room; older blocks are as full as they will get.
class ByteTrieBuilder {
 public:
  ByteTrieBuilder(ByteTrie& trie, const std::vector<ByteTrie::Key>& keys)
      : units_(trie.units_), keys_(keys) {}

  void build() {
    add_block();
    used_[0] = true;
    std::vector<Range> queue{{0, 0, keys_.size(), 0}};
    for (std::size_t i = 0; i < queue.size(); ++i) place_children(Range(queue[i]), queue);
  }

 private:
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t kOpenBlocks = 16;

  struct Range {  // keys that share their first `depth` bytes
    std::uint32_t node;
    std::size_t begin, end, depth;
  };

  void add_block() {
    units_.resize(units_.size() + kBlock);
    used_.resize(units_.size(), false);
  }

  unsigned char byte_of(std::size_t key, std::size_t depth) const {
    return static_cast<unsigned char>(keys_[key].first[depth]);
  }

  void place_children(Range range, std::vector<Range>& queue) {
    if (range.begin < range.end && keys_[range.begin].first.size() == range.depth) {
      units_[range.node].value = keys_[range.begin++].second;
    }
    if (range.begin == range.end) return;
    labels_.clear();
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const unsigned char label = byte_of(i, range.depth);
      if (labels_.empty() || labels_.back() != label) labels_.push_back(label);
    }
    const std::uint32_t base = find_base();
    units_[range.node].base = base;
    for (std::size_t i = range.begin; i < range.end;) {
      const unsigned char label = byte_of(i, range.depth);
      std::size_t end = i + 1;
      while (end < range.end && byte_of(end, range.depth) == label) ++end;
      const std::uint32_t child = base ^ label;
      units_[child].parent = range.node;
      used_[child] = true;
      queue.push_back({child, i, end, range.depth + 1});
      i = end;
    }
  }

  bool fits(std::uint32_t base) const {
    return std::ranges::all_of(labels_, [&](unsigned char c) { return !used_[base ^ c]; });
  }

  std::uint32_t find_base() {
    const std::size_t blocks = units_.size() / kBlock;
    for (std::size_t block = blocks - std::min(blocks, kOpenBlocks); block < blocks; ++block) {
      for (std::size_t slot = block * kBlock; slot < (block + 1) * kBlock; ++slot) {
        if (used_[slot]) continue;
        const auto base = static_cast<std::uint32_t>(slot) ^ labels_[0];
        if (fits(base)) return base;
      }
    }
    add_block();
    return static_cast<std::uint32_t>(units_.size() - kBlock);
  }

  std::vector<ByteTrie::Unit>& units_;
  const std::vector<ByteTrie::Key>& keys_;
  std::vector<bool> used_;
  std::vector<unsigned char> labels_;
};

ByteTrie::ByteTrie(std::vector<Key> keys) {
  std::ranges::stable_sort(keys, {}, [](const Key& key) { return key.first; });
  std::vector<Key> unique;
  for (const Key& key : keys) {
    if (key.first.empty()) continue;
    if (!unique.empty() && unique.back().first == key.first) unique.pop_back();
    unique.push_back(key);
  }
  ByteTrieBuilder(*this, unique).build();
}

}  // namespace qkv::text
