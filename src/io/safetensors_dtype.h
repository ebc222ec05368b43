// The element types of the safetensors format, of which DType has some.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "qkv/dtype.h"

namespace qkv {

// "F32" -> DType::f32; nothing for a dtype the library does not have.
std::optional<DType> safetensors_dtype(std::string_view name);
// DType::f32 -> "F32"
const char* safetensors_name(DType dtype);
// Bits of an element; nothing for a name that the format has not defined so far.
std::optional<std::uint64_t> safetensors_bits(std::string_view name);

}  // namespace qkv
