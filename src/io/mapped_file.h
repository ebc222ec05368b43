// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace qkv {

// The bytes are those of the page cache: opening a file of many gigabytes reads none of them.
// The file must not be shortened while it is mapped; the kernel answers a touch of a page that is
// gone with SIGBUS, and no check made here could prevent that.
class MappedFile {
 public:
  // Throws Error with the path and the system's reason. An empty file has size 0 and no data.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Lets go of the pages that lie within the range whole; the range lies in a MappedFile. They are
// unchanged copies of the file: the next touch reads them again.
void drop_mapped_pages(const std::byte* begin, const std::byte* end);

}  // namespace qkv
