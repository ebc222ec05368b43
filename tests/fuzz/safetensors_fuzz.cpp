// Any bytes as a .safetensors file: opened and read, or refused with an Error.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "qkv/checkpoint.h"
#include "qkv/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("fuzz", 0);  // a file without a disk
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  try {
    const qkv::Checkpoint checkpoint = qkv::Checkpoint::open(path);
    std::uint64_t total = 0;
    unsigned sum = 0;
    for (const std::string& name : checkpoint.names()) {
      const qkv::TensorInfo info = checkpoint.info(name);
      total += info.bytes;
      if (!info.dtype) continue;
      try {
        const qkv::Tensor tensor = checkpoint[name];
        const auto* bytes = static_cast<const volatile unsigned char*>(tensor.raw());
        for (std::uint64_t i = 0; i < info.bytes; ++i) sum += bytes[i];
        drop_pages(tensor);
      } catch (const qkv::Error&) {  // booleans other than 0 and 1
      }
    }
    if (total + 8 > size) std::abort();  // more bytes than the file has
    static_cast<void>(sum);
  } catch (const qkv::Error&) {
  }
  return 0;
}
