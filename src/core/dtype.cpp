#include "qkv/dtype.h"

#include "core/check.h"

namespace qkv {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  std::size_t size;
};
constexpr Entry kEntries[] = {
    {DType::f32, "f32", 4}, {DType::bf16, "bf16", 2},    {DType::f16, "f16", 2},
    {DType::i32, "i32", 4}, {DType::i64, "i64", 8},      {DType::i8, "i8", 1},
    {DType::u8, "u8", 1},   {DType::boolean, "bool", 1},
};

const Entry& entry(DType dtype) { return kEntries[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }

bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::string to_string(DType dtype) { return entry(dtype).name; }

DType dtype_from_string(const std::string& name) {
  for (const Entry& e : kEntries) {
    if (name == e.name) return e.dtype;
  }
  fail("unknown dtype '{}'; expected one of f32, bf16, f16, i32, i64, i8, u8, bool", name);
}

f16::f16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);  // NaN, quiet
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to infinity: 65520 and above
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets the f32 adder round at that bit.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

f16::operator float() const {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x0400u) {  // zero, subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

}  // namespace qkv
