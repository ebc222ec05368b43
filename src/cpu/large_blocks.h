// Large blocks of memory that were given back, kept for the next that is asked for: fresh memory
// costs a fault and a clearing of every page, which in a virtual machine may take longer than the
// kernel that fills it.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "core/process_mutex.h"

namespace qkv::cpu {

// What is used and what is kept together are never more than the most that was used at once, so
// that keeping does not raise a process's peak; and at most `most_kept` bytes are kept.
class LargeBlocks {
 public:
  explicit LargeBlocks(std::size_t most_kept) : most_kept_(most_kept) {}
  ~LargeBlocks() { keep_at_most(0); }
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;

  // As fresh_memory, but perhaps not fresh.
  void* take(std::size_t bytes);
  void give_back(void* data);  // what `take` gave
  // Gives everything kept to the system.
  void trim();
  std::size_t kept_bytes();

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };

  void* reuse(std::size_t bytes);
  void keep_at_most(std::size_t bytes);

  const std::size_t most_kept_;
  ProcessMutex mutex_;
  std::unordered_map<void*, std::size_t> used_;
  std::vector<Block> kept_;  // the oldest first
  std::size_t used_bytes_ = 0, kept_bytes_ = 0, most_used_ = 0;
};

}  // namespace qkv::cpu
