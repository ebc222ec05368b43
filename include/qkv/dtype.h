// Element types of tensors, and the two 16-bit floating-point formats as C++ types.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace qkv {

enum class DType : std::uint8_t { f32, bf16, f16, i32, i64, i8, u8, boolean };

std::size_t size_of(DType dtype);
bool is_floating(DType dtype);
std::string to_string(DType dtype);
// "f32", "bf16", ...; throws Error on anything else.
DType dtype_from_string(const std::string& name);

// bfloat16: the upper half of an f32. Conversion rounds to nearest even and keeps NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(is_nan ? (word >> 16) | 0x40u
                                             : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

// IEEE binary16. Conversion rounds to nearest even, keeps subnormals, infinities and NaN.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

// dtype_of<float> == DType::f32, and so on for every element type.
template <class T>
inline constexpr DType dtype_of = T::unknown_element_type;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

}  // namespace qkv
