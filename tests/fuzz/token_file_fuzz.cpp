// Any bytes as a cache of tokens: opened with every record inside of it, or not opened.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("fuzz", 0);  // a file without a disk
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  const auto opened = qkv::TokenFile::open(path, "key");
  if (!opened) return 0;
  volatile std::int64_t sum = 0;
  for (const std::int32_t id : opened->tokens()) sum = sum + id;
  for (const qkv::TokenRecord& record : opened->records()) {
    const std::uint64_t count = std::uint64_t{record.source} + record.target;
    if (record.first > opened->tokens().size()) std::abort();
    if (count > opened->tokens().size() - record.first) std::abort();
  }
  return 0;
}
