// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace qkv {

// The bytes are those of the page cache: opening a file of many gigabytes reads none of them.
// Another file may be renamed over this one, which keeps its bytes until it is unmapped. It must
// not be shortened in place: the kernel answers a touch of a page that is gone with SIGBUS, and no
// check made here could prevent that.
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
  explicit MappedFile(const std::string& path) : path_(path) {}
  friend const char* mapped_file_at(const void* address) noexcept;

  const std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The path of the mapped file that has a byte at this address, or null: for a handler of SIGBUS,
// who may neither wait nor allocate. Of more than a thousand files mapped at once some are not
// known.
const char* mapped_file_at(const void* address) noexcept;

// Lets go of the pages that lie within the range whole; the range lies in a MappedFile. They are
// unchanged copies of the file: the next touch reads them again.
void drop_mapped_pages(const std::byte* begin, const std::byte* end);

}  // namespace qkv
