// What the files of this folder share of POSIX.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/check.h"

namespace qkv {

// "cannot open 'x': No such file or directory"
[[noreturn]] inline void fail_with_errno(const char* what, const std::string& path) {
  const int code = errno;
  fail("{} '{}': {}", what, path, std::generic_category().message(code));
}

// Closed on every way out.
struct Descriptor {
  int number;

  explicit Descriptor(int file) : number(file) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace qkv
