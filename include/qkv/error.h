// One exception type for everything the library refuses to do.
#pragma once

#include <stdexcept>
#include <string>

namespace qkv {

// The message names the operator, the argument with its shape, and what was expected.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace qkv
