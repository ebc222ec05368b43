// The JSON header of a .safetensors file, checked against the bytes it describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "qkv/tensor.h"

namespace qkv {

struct SafetensorsEntry {
  std::string dtype;  // as written; not every file holds only dtypes the library has
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes after the header
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // bytes of the file before the first tensor's
};

inline constexpr std::uint64_t kSafetensorsPrefix = 8;        // bytes of the header's length
inline constexpr std::uint64_t kLongestHeader = 100'000'000;  // the limit of the format itself

// Reads the header of a whole file, `path` for messages. Throws Error unless the tensors tile the
// bytes after the header exactly: in bounds, no overlap, no hole, and each extent product times
// element size equal to its range (where the format defines the dtype).
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& path);

}  // namespace qkv
