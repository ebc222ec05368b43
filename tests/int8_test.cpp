// int8: rounding and back, and products of whole numbers, exact on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/autograd.h"
#include "qkv/cpu.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "support/targets.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::on_every_target;

using test::kNan;

Tensor normal(const Shape& shape, std::uint64_t seed) {
  return Generator(seed).normal(shape, 0, 1, DType::f32);
}

std::int64_t groups_of(std::int64_t inputs, std::int64_t group) {
  return group == 0 || group >= inputs ? 1 : (inputs + group - 1) / group;
}

// Whole numbers, of which 127 is one in every group: the scale of such a group is 1, and products
// of it with a weight whose scales are 1 are whole numbers, too.
struct Exact {
  Tensor x, values, scale;
  std::vector<std::int64_t> expected;  // [m, n]

  Exact(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t group) {
    std::mt19937 random(static_cast<unsigned>(m * 1009 + n * 31 + k));
    std::uniform_int_distribution<int> element(-127, 127), weight(-128, 127);
    std::vector<float> rows;
    for (std::int64_t i = 0; i < m * k; ++i) {
      rows.push_back(static_cast<float>(i % k % 32 == 0 ? 127 : element(random)));
    }
    std::vector<std::int8_t> w;
    for (std::int64_t i = 0; i < n * k; ++i) w.push_back(static_cast<std::int8_t>(weight(random)));
    if (n > 1) std::fill_n(w.begin(), k, std::int8_t{-128});  // the largest sums there are
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        std::int64_t sum = 0;
        for (std::int64_t c = 0; c < k; ++c) {
          sum += static_cast<std::int64_t>(rows[static_cast<std::size_t>(i * k + c)]) *
                 w[static_cast<std::size_t>(j * k + c)];
        }
        expected.push_back(sum);
      }
    }
    x = Tensor::from(rows, {m, k});
    values = Tensor::from(w, {n, k});
    scale = Tensor::full({n, groups_of(k, group)}, 1);
  }
};

void expect_exact(const Tensor& y, const Exact& exact) {
  const std::vector<float> got = y.to_vector<float>();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], static_cast<float>(exact.expected[i])) << "at " << i << " of " << got.size();
  }
}

TEST(Int8, ProductsAreExactOnEveryTarget) {
  on_every_target([] {
    for (const std::int64_t group : {0, 32, 64, 128}) {
      for (const std::int64_t m : {1, 2, 5, 7, 16, 17, 33, 65}) {
        for (const std::int64_t n : {1, 15, 16, 17, 49, 64, 100}) {
          for (const std::int64_t k : {1, 3, 31, 32, 33, 64, 65, 100, 129, 288}) {
            SCOPED_TRACE(::testing::Message() << m << "x" << n << "x" << k << " group " << group);
            const Exact exact(m, n, k, group);
            expect_exact(linear(exact.x, PackedWeight(Quantized{exact.values, exact.scale})),
                         exact);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  });
}

TEST(Int8, ProductsAreExactWhenTheyAreLarge) {
  on_every_target([] {
    for (const auto& [m, n, k] : {std::array{1, 300, 1000}, {300, 200, 768}, {70, 770, 64}}) {
      const Exact exact(m, n, k, 0);
      expect_exact(linear(exact.x, PackedWeight(Quantized{exact.values, exact.scale})), exact);
    }
  });
}

TEST(Int8, WeightsMayBeStoredTransposed) {
  on_every_target([] {
    const Exact exact(19, 70, 130, 64);
    const Quantized turned{contiguous(transpose(exact.values, 0, 1)),
                           contiguous(transpose(exact.scale, 0, 1))};
    expect_exact(linear(exact.x, PackedWeight(turned, true)), exact);
  });
}

// Of the rounded operands in double: all that differs is the last step in f32.
TEST(Int8, LinearIsThatOfTheRoundedOperands) {
  on_every_target([] {
    for (const std::int64_t group : {0, 32, 64, 128}) {
      for (const auto& [m, n, k] : {std::array{1, 33, 200}, {3, 64, 768}, {40, 130, 300}}) {
        const Tensor x = normal({m, k}, 1), w = normal({n, k}, 2), bias = normal({n}, 3);
        const Quantized q = quantize(w, group);
        const std::vector<double> a = test::values_of(dequantize(quantize(x, group))),
                                  b = test::values_of(dequantize(q)), c = test::values_of(bias);
        const std::vector<float> y =
            linear(x, PackedWeight(q), bias, Activation::relu).to_vector<float>();
        for (std::int64_t i = 0; i < m * n; ++i) {
          double sum = 0;
          for (std::int64_t j = 0; j < k; ++j) sum += a[i / n * k + j] * b[i % n * k + j];
          const double expected = std::max(0.0, sum + c[i % n]);
          ASSERT_NEAR(y[i], expected, 1e-5 * std::sqrt(static_cast<double>(k)))
              << m << "x" << n << "x" << k << " group " << group << " at " << i;
        }
      }
    }
  });
}

TEST(Int8, TakesEveryDtypeOfActivation) {
  on_every_target([] {
    const PackedWeight w(quantize(normal({50, 96}, 1)));
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Tensor x = to(normal({5, 96}, 2), dtype);
      const Tensor y = linear(x, w), expected = to(linear(to(x, DType::f32), w), dtype);
      EXPECT_EQ(bytes_of(y), bytes_of(expected));
    }
  });
}

TEST(Int8, AnyNumberOfThreadsGivesTheSameBits) {
  const int before = num_threads();
  for (const std::int64_t m : {1, 9, 300}) {
    const Tensor x = normal({m, 320}, 1);
    const PackedWeight w(quantize(normal({500, 320}, 2), 64));
    set_num_threads(1);
    const std::vector<std::uint8_t> alone = bytes_of(linear(x, w));
    set_num_threads(3);
    EXPECT_EQ(bytes_of(linear(x, w)), alone);
  }
  set_num_threads(before);
}

TEST(Int8, ScalesAreTheLargestMagnitudesAndErrorsHalfOfThem) {
  on_every_target([] {
    for (const std::int64_t group : {0, 32, 64, 128}) {
      const Tensor x = normal({3, 2, 145}, 7);
      const Quantized q = quantize(x, group);
      const std::int64_t size = group == 0 ? 145 : group, groups = groups_of(145, group);
      ASSERT_EQ(q.scale.shape(), (Shape{3, 2, groups}));
      const std::vector<float> from = x.to_vector<float>(), scale = q.scale.to_vector<float>();
      const std::vector<float> back = dequantize(q).to_vector<float>();
      for (std::int64_t row = 0; row < 6; ++row) {
        for (std::int64_t g = 0; g < groups; ++g) {
          float largest = 0;
          for (std::int64_t k = g * size; k < std::min<std::int64_t>(145, (g + 1) * size); ++k) {
            largest = std::max(largest, std::abs(from[row * 145 + k]));
            EXPECT_NEAR(from[row * 145 + k], back[row * 145 + k],
                        0.5001f * scale[row * groups + g]);
          }
          EXPECT_EQ(scale[row * groups + g], largest / 127);
        }
      }
    }
  });
}

TEST(Int8, EveryTargetRoundsAlike) {
  std::vector<std::uint8_t> first;
  on_every_target([&] {
    const Quantized q = quantize(normal({20, 301}, 5), 64);
    std::vector<std::uint8_t> bytes = bytes_of(q.values);
    const std::vector<std::uint8_t> scale = bytes_of(q.scale);
    bytes.insert(bytes.end(), scale.begin(), scale.end());
    const std::vector<std::uint8_t> spread =
        bytes_of(quantize(normal({20, 304}, 6), 0, true).values);
    bytes.insert(bytes.end(), spread.begin(), spread.end());
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  });
}

TEST(Int8, ViewsAreRoundedAsTheyAre) {
  const Tensor x = normal({40, 70}, 3);
  const Quantized a = quantize(transpose(x, 0, 1), 32);
  const Quantized b = quantize(contiguous(transpose(x, 0, 1)), 32);
  EXPECT_EQ(bytes_of(a.values), bytes_of(b.values));
  EXPECT_EQ(bytes_of(a.scale), bytes_of(b.scale));
  const Quantized turned{transpose(contiguous(transpose(a.values, 0, 1)), 0, 1), a.scale};
  EXPECT_EQ(bytes_of(dequantize(turned)), bytes_of(dequantize(a)));
}

TEST(Int8, RowsThatVanishAreZeroAndRowsWithNanAreNan) {
  on_every_target([] {
    std::vector<float> rows(4 * 40, 0);
    for (int i = 0; i < 40; ++i) rows[40 + i] = 1e-38f * static_cast<float>(i);
    for (int i = 0; i < 40; ++i) rows[80 + i] = rows[120 + i] = 1;
    rows[80 + 39] = kNan;
    rows[120 + 5] = -std::numeric_limits<float>::infinity();
    const Tensor x = Tensor::from(rows, {4, 40});
    const std::vector<float> scale = quantize(x).scale.to_vector<float>();
    EXPECT_EQ(scale[0], 0);
    EXPECT_EQ(scale[1], 0);
    EXPECT_TRUE(std::isnan(scale[2]));
    EXPECT_TRUE(std::isnan(scale[3]));
    const std::vector<float> y =
        linear(x, PackedWeight(quantize(normal({7, 40}, 1)))).to_vector<float>();
    for (int i = 0; i < 14; ++i) EXPECT_EQ(y[i], 0);
    for (int i = 14; i < 28; ++i) EXPECT_TRUE(std::isnan(y[i]));
  });
}

TEST(Int8, EmbeddingTakesRows) {
  for (const bool spread : {false, true}) {
    const Quantized table = quantize(normal({11, 52}, 1), 32, spread);
    const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 0, 10, 3}, {2, 2});
    const Tensor rows = embedding(ids, table);
    ASSERT_EQ(rows.shape(), (Shape{2, 2, 52}));
    EXPECT_EQ(bytes_of(rows), bytes_of(embedding(ids, dequantize(table))));
    EXPECT_ERROR("id 11", embedding(Tensor::from(std::vector<std::int64_t>{11}, {1}), table));
  }
}

// x H in double, one row: bit b of `i` and of `j` both set changes the sign.
std::vector<double> spread_in_double(const std::vector<double>& x) {
  const std::size_t n = x.size() % 16 == 0 ? 16 : x.size() % 4 == 0 ? 4 : 1, stride = x.size() / n;
  std::vector<double> y(x.size());
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < n; ++i) {
      const double sign = std::popcount(i & j) % 2 == 0 ? 1 : -1;
      for (std::size_t k = 0; k < stride; ++k) {
        y[j * stride + k] += sign * x[i * stride + k] / std::sqrt(static_cast<double>(n));
      }
    }
  }
  return y;
}

TEST(Int8, SpreadRowsAreTheirHadamardTransforms) {
  on_every_target([] {
    for (const std::int64_t width : {1, 3, 4, 12, 16, 36, 48, 80, 288, 272 * 4, 770}) {
      for (const std::int64_t group : {0, 32}) {
        const Tensor x = normal({2, width}, 3);
        const Quantized q = quantize(x, group, true);
        EXPECT_TRUE(q.spread);
        const std::vector<double> from = test::values_of(x), back = test::values_of(dequantize(q));
        Quantized plain = q;
        plain.spread = false;
        const std::vector<double> spread = test::values_of(dequantize(plain));
        const std::vector<float> scale = q.scale.to_vector<float>();
        const float most = *std::max_element(scale.begin(), scale.end());
        for (std::int64_t r = 0; r < 2; ++r) {
          const auto at = from.begin() + r * width;
          const std::vector<double> expected = spread_in_double({at, at + width});
          for (std::int64_t k = 0; k < width; ++k) {
            ASSERT_NEAR(spread[r * width + k], expected[k], 0.501 * most) << width << " at " << k;
            ASSERT_NEAR(back[r * width + k], at[k], 2.001 * most) << width << " at " << k;
          }
        }
      }
    }
  });
}

TEST(Int8, AnOutlierCostsTheOthersLittleWhenRowsAreSpread) {
  Tensor x = normal({1, 768}, 3);
  x.data<float>()[100] = 100;
  const auto error_of = [&](const Quantized& q) {
    const std::vector<double> back = test::values_of(dequantize(q)), from = test::values_of(x);
    double sum = 0;
    for (std::size_t i = 0; i < from.size(); ++i) sum += std::pow(back[i] - from[i], 2);
    return std::sqrt(sum);
  };
  EXPECT_LT(error_of(quantize(x, 0, true)), 0.35 * error_of(quantize(x)));
}

// Both sides spread the same way: the products are what they were, up to the rounding to int8.
TEST(Int8, LinearSpreadsItsRowsAsItsWeight) {
  on_every_target([] {
    for (const std::int64_t group : {0, 64}) {
      for (const auto& [m, n, k] : {std::array{1, 33, 200}, {3, 64, 768}, {40, 130, 300}}) {
        const Tensor x = normal({m, k}, 1), w = normal({n, k}, 2);
        const Quantized q = quantize(w, group, true), of_x = quantize(x, group, true);
        const std::vector<double> a = test::values_of(dequantize(of_x)),
                                  b = test::values_of(dequantize(q));
        const std::vector<float> y = linear(x, PackedWeight(q)).to_vector<float>();
        for (std::int64_t i = 0; i < m * n; ++i) {
          double sum = 0;
          for (std::int64_t j = 0; j < k; ++j) sum += a[i / n * k + j] * b[i % n * k + j];
          ASSERT_NEAR(y[i], sum, 1e-5 * std::sqrt(static_cast<double>(k)))
              << m << "x" << n << "x" << k << " group " << group << " at " << i;
        }
      }
    }
  });
}

TEST(Int8, LinearRoundsToTheDtypeAskedFor) {
  const Tensor x = normal({5, 96}, 2);
  const PackedWeight w(quantize(normal({50, 96}, 1)));
  const Tensor y = linear(x, w, {}, Activation::none, DType::bf16);
  EXPECT_EQ(bytes_of(y), bytes_of(to(linear(x, w), DType::bf16)));
  EXPECT_ERROR("to f32, bf16 or f16", linear(x, w, {}, Activation::none, DType::i32));
}

TEST(Int8, EmptyIsEmpty) {
  EXPECT_EQ(quantize(Tensor::zeros({0, 5})).scale.shape(), (Shape{0, 1}));
  EXPECT_EQ(dequantize(quantize(Tensor::zeros({3, 0}))).shape(), (Shape{3, 0}));
  EXPECT_EQ(linear(Tensor::zeros({0, 5}), PackedWeight(quantize(Tensor::zeros({4, 5})))).shape(),
            (Shape{0, 4}));
}

TEST(Int8, WhatDoesNotFitIsNamed) {
  const Tensor w = normal({6, 100}, 1);
  EXPECT_ERROR("group must be", quantize(w, 48));
  EXPECT_ERROR("x must be floating point", quantize(to(w, DType::i32)));
  const Quantized q = quantize(w, 32);
  EXPECT_ERROR("does not fit", PackedWeight(Quantized{q.values, Tensor::zeros({6, 3})}));
  EXPECT_ERROR("does not fit", PackedWeight(Quantized{q.values, Tensor::zeros({5, 4})}));
  EXPECT_ERROR("scale of an int8 weight", PackedWeight(Quantized{q.values, {}}));
  EXPECT_ERROR("must be i8", PackedWeight(Quantized{w, q.scale}));
  EXPECT_ERROR("scale must be f32", dequantize({q.values, Tensor::zeros({6, 3})}));
  EXPECT_ERROR("to f32, bf16 or f16", dequantize(q, DType::i32));
  EXPECT_ERROR("weight must be floating point", linear(w, q.values));
  EXPECT_ERROR("at most", PackedWeight(Quantized{Tensor::zeros({1, 1 << 18}, {DType::i8}),
                                                 Tensor::zeros({1, 1})}));
}

}  // namespace
}  // namespace qkv
