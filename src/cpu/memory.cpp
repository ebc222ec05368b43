#include "cpu/memory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace qkv::cpu {

MemoryUse memory_use() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmRSS:" && status >> kilobytes) use.now = kilobytes * 1024;
    if (word == "VmHWM:" && status >> kilobytes) use.peak = kilobytes * 1024;
  }
  return use;
}

void reset_peak_memory() {
#ifdef __GLIBC__
  malloc_trim(0);  // what was freed and kept for later would be used again without being seen
#endif
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace qkv::cpu
