#include "text/byte_trie.h"

#include <algorithm>
#include <cstddef>

namespace qkv::text {

// Places the children of one node after the other, in the first block that has room for them. A
// block that refused a few times is as full as it will get.
class ByteTrieBuilder {
 public:
  ByteTrieBuilder(ByteTrie& trie, const std::vector<ByteTrie::Key>& keys)
      : units_(trie.units_), keys_(keys) {}

  void build() {
    add_block();
    used_[0] = 1;
    std::vector<Range> queue{{0, 0, keys_.size(), 0}};
    for (std::size_t i = 0; i < queue.size(); ++i) place_children(Range(queue[i]), queue);
  }

 private:
  static constexpr std::size_t kBlock = 256;
  static constexpr int kMostRefusals = 4;

  struct Range {  // keys that share their first `depth` bytes
    std::uint32_t node;
    std::size_t begin, end, depth;
  };

  // A block with room for more children, as long as it is worth asking.
  struct Open {
    std::size_t begin;
    std::size_t cursor;  // slots before are taken
    int refusals = 0;
  };

  void add_block() {
    open_.push_back({units_.size(), units_.size()});
    units_.resize(units_.size() + kBlock);
    used_.resize(units_.size(), 0);
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
      used_[child] = 1;
      queue.push_back({child, i, end, range.depth + 1});
      i = end;
    }
  }

  bool fits(std::uint32_t base) const {
    return std::ranges::all_of(labels_, [&](unsigned char c) { return used_[base ^ c] == 0; });
  }

  std::uint32_t find_base() {
    for (std::size_t i = 0; i < open_.size();) {
      Open& block = open_[i];
      const std::size_t end = block.begin + kBlock;
      while (block.cursor < end && used_[block.cursor] != 0) ++block.cursor;
      for (std::size_t slot = block.cursor; slot < end; ++slot) {
        if (used_[slot] != 0) continue;
        const auto base = static_cast<std::uint32_t>(slot) ^ labels_[0];
        if (fits(base)) return base;
      }
      if (block.cursor == end || ++block.refusals == kMostRefusals) {
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    add_block();
    return static_cast<std::uint32_t>(units_.size() - kBlock);
  }

  std::vector<ByteTrie::Unit>& units_;
  const std::vector<ByteTrie::Key>& keys_;
  std::vector<std::uint8_t> used_;
  std::vector<Open> open_;
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
