// One process at a time.
#pragma once

#include <string>

namespace qkv {

// An exclusive lock on a file, which stays when it is given back: removing it would let two
// processes lock two files of one name. The kernel gives it back when its holder ends, however that
// happens; a child without exec holds it, too, as long as it lives.
class FileLock {
 public:
  // Makes the file if need be. Error where another holds it, in this process or in any other: what
  // is locked (`what`) and, where the file says so, by whom.
  FileLock(const std::string& path, const std::string& what);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Why nothing is locked, where the file system has no locks; else empty.
  const std::string& unsupported() const { return unsupported_; }

 private:
  int file_ = -1;
  std::string unsupported_;
};

}  // namespace qkv
