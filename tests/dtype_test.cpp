// The 16-bit formats against their definitions, for every bit pattern and every rounding boundary.
#include "qkv/dtype.h"

#include <cmath>
#include <limits>

#include "expect_error.h"

namespace qkv {
namespace {

// The value of a sign-exponent-fraction pattern, from the definition.
double decode(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1 : 1;
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const double fraction = bits & ((1u << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
}

template <class T>
struct Format;
template <>
struct Format<f16> {
  static constexpr int kExponent = 5, kFraction = 10;
  static constexpr std::uint32_t kInfinity = 0x7c00;
};
template <>
struct Format<bf16> {
  static constexpr int kExponent = 8, kFraction = 7;
  static constexpr std::uint32_t kInfinity = 0x7f80;
};

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

template <class T>
class HalfTest : public ::testing::Test {};
using Halves = ::testing::Types<f16, bf16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryPatternHasItsValueAndComesBack) {
  using F = Format<TypeParam>;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<float>(from_bits<TypeParam>(bits));
    const double expected = decode(bits, F::kExponent, F::kFraction);
    const TypeParam back(value);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000, bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(back.bits, bits);
    }
  }
}

// Between two neighbours: below the middle down, above it up, at it to the even one. The middle
// of two 16-bit values is an f32, so these are the only places where rounding can go wrong.
TYPED_TEST(HalfTest, RoundsToNearestEvenAtEveryBoundary) {
  using F = Format<TypeParam>;
  for (std::uint32_t low = 0; low < F::kInfinity; ++low) {
    const std::uint32_t high = low + 1;
    // Beyond the largest finite value the next step, were it finite, marks the boundary.
    const double below = decode(low, F::kExponent, F::kFraction);
    const double step = high < F::kInfinity ? decode(high, F::kExponent, F::kFraction) - below
                                            : below - decode(low - 1, F::kExponent, F::kFraction);
    const auto middle = static_cast<float>(below + step / 2);
    ASSERT_EQ(double{middle}, below + step / 2) << low;
    const std::uint32_t even = (low & 1) == 0 ? low : high;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(TypeParam(s * middle).bits, sign | even) << low;
      ASSERT_EQ(TypeParam(s * std::nextafter(middle, 0.0f)).bits, sign | low) << low;
      ASSERT_EQ(TypeParam(s * std::nextafter(middle, HUGE_VALF)).bits, sign | high) << low;
    }
  }
}

TYPED_TEST(HalfTest, KeepsSpecialValues) {
  using Limits = std::numeric_limits<float>;
  const auto through = [](float x) { return static_cast<float>(TypeParam(x)); };
  EXPECT_EQ(through(Limits::infinity()), Limits::infinity());
  EXPECT_EQ(through(-Limits::infinity()), -Limits::infinity());
  EXPECT_EQ(through(Limits::max()), Limits::infinity());
  EXPECT_TRUE(std::signbit(through(-0.0f)));
  EXPECT_TRUE(std::isnan(through(Limits::quiet_NaN())));
  // A NaN whose payload lies only in the bits that are cut off must not become an infinity.
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0xff800001u))));
}

TEST(F16, RoundsTinyValuesOfEverySize) {
  // f32 subnormals and everything below half of 2^-24 are zero; above it the least subnormal.
  EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(f16(0x1p-25f).bits, 0);
  EXPECT_EQ(f16(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(f16(-0x1p-26f).bits, 0x8000);
}

TEST(DType, HasNamesAndSizes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::i8,
                            DType::u8, DType::boolean}) {
    EXPECT_EQ(dtype_from_string(to_string(dtype)), dtype);
  }
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f16), sizeof(f16));
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(size_of(DType::i64), 8u);
  EXPECT_EQ(size_of(DType::u8), 1u);
  EXPECT_EQ(size_of(DType::boolean), sizeof(bool));
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_FALSE(is_floating(DType::i32));
  EXPECT_FALSE(is_floating(DType::boolean));
  EXPECT_ERROR("unknown dtype 'f64'", dtype_from_string("f64"));
}

}  // namespace
}  // namespace qkv
