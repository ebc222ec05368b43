#include "cpu/large_blocks.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "cpu/memory.h"

namespace qkv::cpu {

void* LargeBlocks::take(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (void* data = reuse(bytes)) return data;
  const std::size_t used = used_bytes_ + bytes;
  if (used < bytes) return nullptr;
  most_used_ = std::max(most_used_, used);
  keep_at_most(most_used_ - used);
  void* data = fresh_memory(bytes);
  if (data == nullptr) {
    keep_at_most(0);
    data = fresh_memory(bytes);
  }
  if (data == nullptr) return nullptr;
  used_.emplace(data, bytes);
  used_bytes_ = used;
  return data;
}

// The smallest that is large enough, and not so large that much of it would lie idle.
void* LargeBlocks::reuse(std::size_t bytes) {
  auto best = kept_.end();
  for (auto block = kept_.begin(); block != kept_.end(); ++block) {
    const bool fits = block->bytes >= bytes && block->bytes - bytes <= bytes / 4;
    if (fits && (best == kept_.end() || block->bytes < best->bytes)) best = block;
  }
  if (best == kept_.end()) return nullptr;
  const Block block = *best;
  kept_.erase(best);
  kept_bytes_ -= block.bytes;
  used_.emplace(block.data, block.bytes);
  used_bytes_ += block.bytes;
  most_used_ = std::max(most_used_, used_bytes_);
  return block.data;
}

void LargeBlocks::give_back(void* data) {
  const std::scoped_lock lock(mutex_);
  const auto found = used_.find(data);
  const Block block{data, found->second};
  used_.erase(found);
  used_bytes_ -= block.bytes;
  kept_.push_back(block);
  kept_bytes_ += block.bytes;
  keep_at_most(most_kept_);
}

void LargeBlocks::trim() {
  const std::scoped_lock lock(mutex_);
  keep_at_most(0);
  most_used_ = used_bytes_;
}

std::size_t LargeBlocks::kept_bytes() {
  const std::scoped_lock lock(mutex_);
  return kept_bytes_;
}

void LargeBlocks::keep_at_most(std::size_t bytes) {
  auto block = kept_.begin();
  for (; block != kept_.end() && kept_bytes_ > bytes; ++block) {
    free_memory(block->data);
    kept_bytes_ -= block->bytes;
  }
  kept_.erase(kept_.begin(), block);
}

}  // namespace qkv::cpu
