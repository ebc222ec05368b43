// One exception type for everything the library refuses to do; running out of memory is a case of
// it that can be told apart.
#pragma once

#include <stdexcept>
#include <string>

namespace qkv {

// The message names the operator, the argument with its shape, and what was expected.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// The arguments are as they should be, but there is not enough memory, of the CPU or of a GPU. What
// was asked for may succeed once some is freed, or in smaller pieces.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace qkv
