#include "cpu/large_blocks.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace qkv::cpu {
namespace {

// Asks for large pages where whole ones lie within. A system that refuses gives small ones.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (address + bytes) / kLargePage * kLargePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* LargeBlocks::take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes + kAlignment - 1) & ~(kAlignment - 1);
  if (rounded < bytes) return nullptr;
  const std::lock_guard lock(mutex_);
  if (void* data = reuse(rounded)) return data;
  most_used_ = std::max(most_used_, used_bytes_ + rounded);
  keep_at_most(most_used_ - used_bytes_ - rounded);
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    keep_at_most(0);
    data = std::aligned_alloc(kAlignment, rounded);
  }
  if (data == nullptr) return nullptr;
  prefer_large_pages(data, rounded);
  used_.emplace(data, rounded);
  used_bytes_ += rounded;
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
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(data);
  const Block block{data, found->second};
  used_.erase(found);
  used_bytes_ -= block.bytes;
  kept_.push_back(block);
  kept_bytes_ += block.bytes;
  keep_at_most(most_kept_);
}

void LargeBlocks::trim() {
  const std::lock_guard lock(mutex_);
  keep_at_most(0);
  most_used_ = used_bytes_;
}

std::size_t LargeBlocks::kept_bytes() {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

void LargeBlocks::keep_at_most(std::size_t bytes) {
  auto block = kept_.begin();
  for (; block != kept_.end() && kept_bytes_ > bytes; ++block) {
    std::free(block->data);
    kept_bytes_ -= block->bytes;
  }
  kept_.erase(kept_.begin(), block);
}

}  // namespace qkv::cpu
