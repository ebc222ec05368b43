// Any bytes as a cache of tokens: opened with every record inside of it, or not opened.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "io/checksum.h"
#include "io/token_file.h"

namespace {

// Makes the checksums right where the counts allow it, so that what is behind them is reached, too.
void seal(std::string& bytes) {
  constexpr std::size_t kEnd = 64, kContent = 24, kRest = 16;  // kContent: bytes before the end
  if (bytes.size() < kEnd) return;
  const std::size_t end = bytes.size() - kEnd;
  std::uint64_t counts[2];
  std::memcpy(counts, bytes.data() + end, sizeof counts);
  if (counts[0] > end / 4 || counts[1] > end / 32) return;
  const std::size_t content = (counts[0] * 4 + 7) / 8 * 8 + counts[1] * 32;
  if (content > end) return;
  const auto put = [&](std::size_t before_end, std::uint64_t checksum) {
    std::memcpy(bytes.data() + bytes.size() - before_end, &checksum, sizeof checksum);
  };
  put(kContent, qkv::checksum_of(std::string_view(bytes).substr(0, content)));
  put(kRest, 0);
  put(kRest, qkv::checksum_of(std::string_view(bytes).substr(content)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("fuzz", 0);  // a file without a disk
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  seal(bytes);
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, bytes.data(), size, 0) != static_cast<ssize_t>(size)) {
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
