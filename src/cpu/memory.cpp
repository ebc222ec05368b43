#include "cpu/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __unix__
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "cpu/large_blocks.h"

namespace qkv::cpu {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;
// Smaller blocks are the business of malloc; as many bytes it gives back to the system at once.
constexpr std::size_t kLargeBlock = std::size_t{32} << 20;

std::size_t physical_memory() {
#ifdef __unix__
  const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && bytes > 0) return static_cast<std::size_t>(pages) * bytes;
#endif
  return 0;
}

// Asks for large pages where whole ones lie within. A system that refuses gives small ones.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (address + bytes) / kLargePage * kLargePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Nothing is kept under the address sanitizer: it would not see what is read after it was freed.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

// Never destroyed: tensors may outlive it.
LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks(kKeeps ? physical_memory() / 8 : 0);
  return *blocks;
}

}  // namespace

void* fresh_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + kAlignment - 1) & ~(kAlignment - 1);
  // Aligned here: aligned_alloc asks malloc for more than it keeps, so that a block would not fit
  // where one of its size was freed, and the heap grew and shrank by it from call to call.
  void* block = rounded < bytes ? nullptr : std::malloc(rounded + kAlignment);
  if (block == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  void* data = static_cast<std::byte*>(block) + (kAlignment - address % kAlignment);
  static_cast<void**>(data)[-1] = block;
  // Twice the size holds at least one large page, whole.
  if (rounded >= 2 * kLargePage) prefer_large_pages(data, rounded);
  return data;
}

void free_memory(void* data) {
  if (data != nullptr) std::free(static_cast<void**>(data)[-1]);
}

void* allocate(std::size_t bytes) {
  return bytes >= kLargeBlock ? large_blocks().take(bytes) : fresh_memory(bytes);
}

void release(void* data, std::size_t bytes) {
  if (bytes >= kLargeBlock) return large_blocks().give_back(data);
  free_memory(data);
}

MemoryUse memory_use() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmRSS:" && status >> kilobytes) use.now = kilobytes * 1024;
    if (word == "VmHWM:" && status >> kilobytes) use.peak = kilobytes * 1024;
  }
  use.now -= std::min(use.now, large_blocks().kept_bytes());  // which nobody uses
  use.total = physical_memory();
  return use;
}

void reset_peak_memory() {
  // What was freed and kept for later would be used again without being seen.
  large_blocks().trim();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace qkv::cpu
