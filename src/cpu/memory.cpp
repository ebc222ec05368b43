#include "cpu/memory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __unix__
#include <unistd.h>
#endif

namespace qkv::cpu {
namespace {

std::size_t physical_memory() {
#ifdef __unix__
  const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && bytes > 0) return static_cast<std::size_t>(pages) * bytes;
#endif
  return 0;
}

}  // namespace

MemoryUse memory_use() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmRSS:" && status >> kilobytes) use.now = kilobytes * 1024;
    if (word == "VmHWM:" && status >> kilobytes) use.peak = kilobytes * 1024;
  }
  use.total = physical_memory();
  return use;
}

void reset_peak_memory() {
#ifdef __GLIBC__
  malloc_trim(0);  // what was freed and kept for later would be used again without being seen
#endif
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace qkv::cpu
