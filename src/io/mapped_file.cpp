#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>

#include "io/descriptor.h"

namespace qkv {
namespace {

// Every file while it is mapped, for mapped_file_at. Read without a lock, so written without one.
constinit std::array<std::atomic<const MappedFile*>, 1024> mappings{};

// Puts `to` into a place that holds `from`, if there is one.
void replace_mapping(const MappedFile* from, const MappedFile* to) {
  for (auto& place : mappings) {
    const MappedFile* expected = from;
    if (place.compare_exchange_strong(expected, to)) return;
  }
}

}  // namespace

const char* mapped_file_at(const void* address) noexcept {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& place : mappings) {
    const MappedFile* file = place.load();
    if (file == nullptr) continue;
    if (!std::less<>()(at, file->data_) && std::less<>()(at, file->data_ + file->size_)) {
      return file->path_.c_str();
    }
  }
  return nullptr;
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: a named pipe is refused below instead of waiting for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) fail_with_errno("cannot open", path);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail_with_errno("cannot read", path);
  check(S_ISREG(status.st_mode), "cannot read '{}': not a regular file", path);

  const std::shared_ptr<MappedFile> mapped(new MappedFile(path));  // the constructor is private
  if (status.st_size == 0) return mapped;                          // mmap refuses a length of 0
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data == MAP_FAILED && errno == ENOMEM) {
    fail<OutOfMemory>("cannot map '{}': out of memory for its {} bytes", path, size);
  }
  if (data == MAP_FAILED) fail_with_errno("cannot map", path);
  mapped->data_ = static_cast<const std::byte*>(data);
  mapped->size_ = size;
  replace_mapping(nullptr, mapped.get());
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  replace_mapping(this, nullptr);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void drop_mapped_pages(const std::byte* begin, const std::byte* end) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto low = reinterpret_cast<std::uintptr_t>(begin);
  const auto high = reinterpret_cast<std::uintptr_t>(end);
  const std::uintptr_t first = (low + page - 1) / page * page, last = high / page * page;
  if (first >= last) return;
  // A hint: where the kernel refuses, the pages stay, and nothing is wrong.
  ::madvise(const_cast<std::byte*>(begin) + (first - low), last - first, MADV_DONTNEED);
}

}  // namespace qkv
