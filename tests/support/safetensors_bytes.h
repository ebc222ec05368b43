// Safetensors files made by hand, so that a test can write what no writer would.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace qkv::testing {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return bytes_of<std::uint64_t>({header.size()}) + header + data;
}

}  // namespace qkv::testing
