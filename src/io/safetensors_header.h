// The JSON header of a .safetensors file, checked against the bytes it describes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

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
};

// `json` is the header text, `data_bytes` how many bytes follow it, `path` for messages. Throws
// Error unless the tensors tile those bytes exactly: in bounds, no overlap, no hole, and each
// extent product times element size equal to its range (where the dtype is one the library has).
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& path);

// "F32" -> DType::f32; false for a dtype the library does not have.
bool safetensors_dtype(const std::string& name, DType& dtype);

// A name out of a file, fit for a message: short, printable.
std::string shown_name(std::string_view name);

}  // namespace qkv
