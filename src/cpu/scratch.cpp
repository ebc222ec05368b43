#include "cpu/scratch.h"

#include <array>
#include <bit>
#include <vector>

#include "core/check.h"
#include "cpu/memory.h"

namespace qkv::cpu {
namespace {

constexpr std::size_t kSmallest = 256;
constexpr int kClasses = 17;                          // powers of two, 256 bytes to 16 MiB
constexpr std::size_t kKeep = std::size_t{16} << 20;  // bytes a thread keeps

int class_of(std::size_t bytes) {
  return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest);
}

class Cache {
 public:
  ~Cache() {
    for (int i = 0; i < kClasses; ++i) {
      for (void* block : free_[static_cast<std::size_t>(i)]) release(block, kSmallest << i);
    }
  }
  void* take(int size_class) {
    auto& list = free_[static_cast<std::size_t>(size_class)];
    if (list.empty()) return nullptr;
    void* block = list.back();
    list.pop_back();
    kept_ -= kSmallest << size_class;
    return block;
  }
  bool keep(void* block, int size_class) {
    const std::size_t bytes = kSmallest << size_class;
    if (kept_ + bytes > kKeep) return false;
    free_[static_cast<std::size_t>(size_class)].push_back(block);
    kept_ += bytes;
    return true;
  }

 private:
  std::array<std::vector<void*>, kClasses> free_;
  std::size_t kept_ = 0;
};

thread_local Cache cache;

}  // namespace

void* take_scratch(std::size_t bytes) {
  const int size_class = class_of(bytes);
  const bool is_kept = size_class < kClasses;
  void* block = is_kept ? cache.take(size_class) : nullptr;
  if (block == nullptr) block = allocate(is_kept ? kSmallest << size_class : bytes);
  if (block == nullptr) {
    fail<OutOfMemory>("out of memory: {} bytes of working memory on cpu", bytes);
  }
  return block;
}

void give_back_scratch(void* data, std::size_t bytes) {
  const int size_class = class_of(bytes);
  if (size_class >= kClasses) return release(data, bytes);
  if (!cache.keep(data, size_class)) release(data, kSmallest << size_class);
}

}  // namespace qkv::cpu
