#include "io/safetensors_dtype.h"

#include <utility>

#include "core/check.h"

namespace qkv {
namespace {

constexpr std::pair<const char*, DType> kDtypes[] = {
    {"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16}, {"I32", DType::i32},
    {"I64", DType::i64}, {"I8", DType::i8},     {"U8", DType::u8},   {"BOOL", DType::boolean},
};

constexpr std::pair<const char*, std::uint64_t> kOthers[] = {
    {"F64", 64},    {"C64", 64},    {"U64", 64},    {"U32", 32},    {"I16", 16},    {"U16", 16},
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

}  // namespace

std::optional<DType> safetensors_dtype(std::string_view name) {
  for (const auto& [text, dtype] : kDtypes) {
    if (name == text) return dtype;
  }
  return {};
}

const char* safetensors_name(DType dtype) {
  for (const auto& [text, value] : kDtypes) {
    if (value == dtype) return text;
  }
  fail("safetensors has no {}", dtype);
}

std::optional<std::uint64_t> safetensors_bits(std::string_view name) {
  if (const auto dtype = safetensors_dtype(name)) return 8 * size_of(*dtype);
  for (const auto& [text, bits] : kOthers) {
    if (name == text) return bits;
  }
  return {};
}

}  // namespace qkv
