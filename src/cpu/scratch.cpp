#include "cpu/scratch.h"

#include <array>
#include <bit>
#include <cstdlib>
#include <vector>

#include "core/check.h"

namespace qkv::cpu {
namespace {

constexpr std::size_t kAlignment = 64, kSmallest = 256;
constexpr int kClasses = 17;                          // powers of two, 256 bytes to 16 MiB
constexpr std::size_t kKeep = std::size_t{16} << 20;  // bytes a thread keeps

int class_of(std::size_t bytes) {
  return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest);
}

class Cache {
 public:
  ~Cache() {
    for (auto& list : free_) {
      for (void* block : list) std::free(block);
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
  void* block = nullptr;
  if (size_class < kClasses) {
    block = cache.take(size_class);
    if (block == nullptr) block = std::aligned_alloc(kAlignment, kSmallest << size_class);
  } else {
    const std::size_t rounded = (bytes + kAlignment - 1) & ~(kAlignment - 1);
    block = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  }
  check(block != nullptr, "out of memory: {} bytes of working memory on cpu", bytes);
  return block;
}

void give_back_scratch(void* data, std::size_t bytes) {
  const int size_class = class_of(bytes);
  if (size_class >= kClasses || !cache.keep(data, size_class)) std::free(data);
}

}  // namespace qkv::cpu
