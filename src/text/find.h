// Looking for a string in a text, in time proportional to both: std::string_view::find is not.
#pragma once

#include <cstring>
#include <string_view>

namespace qkv::text {

// Where `wanted`, which is not empty, stands first at or after `at`; npos when it does not.
inline std::size_t find_string(std::string_view text, std::string_view wanted, std::size_t at) {
  if (at >= text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + at, text.size() - at, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace qkv::text
