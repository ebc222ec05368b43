// Matrix products on every SIMD target against sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/dispatch.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"
#include "support/targets.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::on_every_target;

using test::kInf;
using test::kNan;
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Backend& cpu() { return backend(Device{}); }

void fill_normal(Tensor& x, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  dispatch_float(x.dtype(), [&]<class T>() {
    T* to = x.data<T>();
    for (std::int64_t i = 0; i < x.numel(); ++i) to[i] = T(normal(random));
  });
}

Tensor normal(const Shape& shape, DType dtype, unsigned seed) {
  Tensor x = Tensor::empty(shape, {dtype});
  fill_normal(x, seed);
  return x;
}

// The layouts a product must take: rows, columns, or neither contiguous. NaN lies between.
enum class Layout { rows, columns, gaps };

Tensor matrix(std::int64_t batch, std::int64_t rows, std::int64_t columns, DType dtype,
              Layout layout, unsigned seed) {
  if (layout == Layout::rows) return normal({batch, rows, columns}, dtype, seed);
  if (layout == Layout::columns) {
    const std::int64_t strides[] = {rows * columns, 1, rows};
    return normal({batch, columns, rows}, dtype, seed).view({batch, rows, columns}, strides, 0);
  }
  const std::int64_t pitch = 2 * columns + 3, strides[] = {rows * pitch, pitch, 2};
  const Tensor all = Tensor::full({batch * rows * pitch + 1}, kNan, {dtype});
  Tensor x = all.view({batch, rows, columns}, strides, 0);
  Tensor values = normal({batch, rows, columns}, dtype, seed);
  cpu().copy(values, x);
  return x;
}

std::vector<double> values_of(const Tensor& x, bool round) {
  std::vector<double> values;
  dispatch_float(x.dtype(), [&]<class T>() {
    for (const T value : x.to_vector<T>()) {
      const auto f = static_cast<float>(value);
      values.push_back(round ? static_cast<float>(bf16(f)) : f);
    }
  });
  return values;
}

double activated(Activation f, double x) {
  switch (f) {
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
    default: return x;
  }
}

// Half a unit in the last place of the largest value that the dtype may have rounded.
double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

// y must be activation(a b + bias); the error of a sum is counted in its sum of magnitudes.
void expect_product(const Tensor& a, const Tensor& b, const Tensor& bias, Activation f,
                    const Tensor& y) {
  const bool round = b.dtype() == DType::bf16;
  const std::vector<double> left = values_of(a, round), right = values_of(b, round);
  const std::vector<double> out = values_of(y, false);
  const std::vector<double> added = bias.defined() ? values_of(bias, false) : std::vector<double>();
  const auto batch = static_cast<std::size_t>(a.size(0)), m = static_cast<std::size_t>(a.size(1));
  const auto n = static_cast<std::size_t>(b.size(2)), k = static_cast<std::size_t>(a.size(2));
  for (std::size_t row = 0; row < batch * m; ++row) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = bias.defined() ? added[j] : 0, magnitude = std::abs(sum);
      for (std::size_t p = 0; p < k; ++p) {
        const double term = left[row * k + p] * right[(row / m * k + p) * n + j];
        sum += term;
        magnitude += std::abs(term);
      }
      const double expected = activated(f, sum);
      const double tolerance =
          magnitude * 2e-6 + 2e-6 + std::abs(expected) * rounding(y.dtype()) * 1.01;
      ASSERT_NEAR(out[row * n + j], expected, tolerance)
          << "row " << row << ", column " << j << " of [" << batch << ", " << m << ", " << n
          << "], depth " << k << ", " << to_string(a.dtype()) << " x " << to_string(b.dtype())
          << " -> " << to_string(y.dtype());
    }
  }
}

Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias = {},
               Activation f = Activation::none, DType dtype = DType::f32) {
  Tensor y = Tensor::full({a.size(0), a.size(1), b.size(2)}, kNan, {dtype});
  cpu().matmul({a, b, bias, f, {}, y});
  return y;
}

// The same by a packed weight: b [1, K, N] is W^T.
Tensor packed_product(const Tensor& a, const Tensor& b, const Tensor& bias = {},
                      Activation f = Activation::none, DType dtype = DType::f32) {
  const std::int64_t m = a.size(1), n = b.size(2), k = b.size(1);
  const std::int64_t by_columns[] = {b.stride(2), b.stride(1)}, rows[] = {k, 1};
  const auto packed = cpu().pack(b.view({n, k}, by_columns, 0));
  Tensor y = Tensor::full({1, m, n}, kNan, {dtype});
  const std::int64_t y_rows[] = {n, 1};
  cpu().linear({a.view({m, k}, rows, 0), packed.get(), bias, f, y.view({m, n}, y_rows, 0)});
  return y;
}

bool same_bits(const Tensor& x, const Tensor& y) {
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) ==
             0;
}

TEST(Gemm, EveryShapeAroundTheTiles) {
  on_every_target([] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 12, 13, 16, 17, 33, 97}) {
        for (const std::int64_t n : {1, 3, 15, 16, 17, 24, 32, 33, 65, 100}) {
          for (const std::int64_t k : {1, 2, 3, 17, 32, 33, 64}) {
            const Tensor a = normal({1, m, k}, dtype, 1), b = normal({1, k, n}, dtype, 2);
            const Tensor y = product(a, b);
            expect_product(a, b, {}, Activation::none, y);
            ASSERT_TRUE(same_bits(packed_product(a, b), y)) << m << " " << n << " " << k;
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(Gemm, SeveralBlocksOfDepthRowsAndColumns) {
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{5, 40, 1100},
                                    {250, 70, 257},
                                    {3, 1000, 512},
                                    {500, 33, 60},
                                    {30, 300, 513}}) {
        const Tensor a = normal({1, m, k}, DType::f32, 3), b = normal({1, k, n}, dtype, 4);
        const Tensor y = product(a, b);
        expect_product(a, b, {}, Activation::none, y);
        ASSERT_TRUE(same_bits(packed_product(a, b), y)) << m << " " << n << " " << k;
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST(Gemm, EveryLayoutAndDType) {
  on_every_target([] {
    for (const Layout of_a : {Layout::rows, Layout::columns, Layout::gaps}) {
      for (const Layout of_b : {Layout::rows, Layout::columns, Layout::gaps}) {
        for (const DType type_a : kDTypes) {
          for (const DType type_b : kDTypes) {
            for (const DType type_y : kDTypes) {
              const Tensor a = matrix(1, 21, 75, type_a, of_a, 5);
              const Tensor b = matrix(1, 75, 50, type_b, of_b, 6);
              expect_product(a, b, {}, Activation::none, product(a, b, {}, {}, type_y));
              if (HasFatalFailure()) return;
            }
          }
        }
        const Tensor a = matrix(1, 130, 300, DType::f32, of_a, 7);
        for (const DType type_b : kDTypes) {
          const Tensor b = matrix(1, 300, 130, type_b, of_b, 8);
          expect_product(a, b, {}, Activation::none, product(a, b));
          const Tensor x = normal({1, 6, 300}, type_b, 9);
          ASSERT_TRUE(same_bits(packed_product(x, b), product(x, b)));
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(Gemm, Batches) {
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      for (const Layout layout : {Layout::rows, Layout::columns, Layout::gaps}) {
        const Tensor a = matrix(5, 9, 40, dtype, layout, 10);
        const Tensor b = matrix(5, 40, 35, dtype, layout, 11);
        expect_product(a, b, {}, Activation::none, product(a, b));
        const auto shared = [](const Tensor& x) {
          const std::int64_t strides[] = {0, x.stride(1), x.stride(2)};
          return x.view(x.shape(), strides, 0);
        };
        expect_product(shared(a), b, {}, Activation::none, product(shared(a), b));
        expect_product(a, shared(b), {}, Activation::none, product(a, shared(b)));
        if (HasFatalFailure()) return;
      }
    }
    // A broadcast row or column.
    const Tensor x = normal({1, 7, 20}, DType::f32, 12), w = normal({1, 20, 18}, DType::f32, 13);
    const std::int64_t row[] = {0, 0, 1}, column[] = {0, 20, 0};
    for (const Tensor& a : {x.view({1, 7, 20}, row, 0), x.view({1, 7, 20}, column, 0)}) {
      expect_product(a, w, {}, Activation::none, product(a, w));
    }
  });
}

TEST(Gemm, BiasAndActivation) {
  on_every_target([] {
    for (const Activation f : {Activation::none, Activation::relu, Activation::gelu,
                               Activation::gelu_tanh, Activation::silu, Activation::tanh}) {
      for (const DType dtype : kDTypes) {
        for (const std::int64_t m : {1, 3, 40}) {
          const Tensor a = normal({1, m, 70}, dtype, 14), b = normal({1, 70, 210}, dtype, 15);
          for (const DType type_bias : kDTypes) {
            const Tensor bias = normal({210}, type_bias, 16);
            const Tensor y = product(a, b, bias, f, dtype);
            expect_product(a, b, bias, f, y);
            ASSERT_TRUE(same_bits(packed_product(a, b, bias, f, dtype), y));
            if (HasFatalFailure()) return;
          }
          expect_product(a, b, {}, f, product(a, b, {}, f, dtype));
        }
      }
    }
  });
}

TEST(Gemm, WithoutDepthOnlyTheBias) {
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      const Tensor a = Tensor::empty({2, 3, 0}, {dtype}), b = Tensor::empty({2, 0, 40}, {dtype});
      const Tensor bias = normal({40}, dtype, 17);
      expect_product(a, b, bias, Activation::tanh, product(a, b, bias, Activation::tanh));
      expect_product(a, b, {}, Activation::none, product(a, b));
      const Tensor a1 = Tensor::empty({1, 3, 0}, {dtype}), b1 = Tensor::empty({1, 0, 40}, {dtype});
      expect_product(a1, b1, bias, Activation::none, packed_product(a1, b1, bias));
      EXPECT_EQ(product(normal({1, 0, 4}, dtype, 1), normal({1, 4, 5}, dtype, 1)).numel(), 0);
      EXPECT_EQ(product(normal({1, 4, 4}, dtype, 1), normal({1, 4, 0}, dtype, 1)).numel(), 0);
      EXPECT_EQ(product(normal({0, 4, 4}, dtype, 1), normal({0, 4, 3}, dtype, 1)).numel(), 0);
      EXPECT_EQ(packed_product(normal({1, 0, 4}, dtype, 1), normal({1, 4, 5}, dtype, 1)).numel(),
                0);
      EXPECT_EQ(packed_product(normal({1, 2, 4}, dtype, 1), normal({1, 4, 0}, dtype, 1)).numel(),
                0);
    }
  });
}

TEST(Gemm, TheSameBitsAtAnyNumberOfThreads) {
  const int before = num_threads();
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t m : {1, 7, 20, 130}) {
        const Tensor a = normal({1, m, 530}, DType::f32, 18), b = normal({1, 530, 400}, dtype, 19);
        std::vector<Tensor> results;
        for (const int threads : {1, 2, 3, 8}) {
          set_num_threads(threads);
          for (int run = 0; run < 2; ++run) results.push_back(product(a, b));
          results.push_back(packed_product(a, b));
        }
        for (const Tensor& y : results) ASSERT_TRUE(same_bits(y, results[0])) << m;
      }
    }
  });
  set_num_threads(before);
}

TEST(Gemm, ARowDoesNotDependOnTheOthers) {
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      const std::int64_t m = 50, n = 90, k = 530;
      const Tensor a = normal({1, m, k}, DType::f32, 20), b = normal({1, k, n}, dtype, 21);
      const Tensor all = packed_product(a, b);
      for (const std::int64_t rows : {1, 2, 5, 11, 13, 29}) {
        const std::int64_t at = m - rows, strides_a[] = {0, k, 1}, strides_y[] = {0, n, 1};
        const Tensor part = packed_product(a.view({1, rows, k}, strides_a, at * k), b);
        ASSERT_TRUE(same_bits(part, all.view({1, rows, n}, strides_y, at * n))) << rows;
      }
    }
  });
}

// Rows too long to be packed whole, in pieces of their depth; a few rows are packed whole.
TEST(Gemm, PiecesOfDepthSumAsTheWhole) {
  const int before = num_threads();
  for (const auto& [dtype, k] :
       {std::pair<DType, std::int64_t>{DType::f32, 22003}, {DType::bf16, 44003}}) {
    const std::int64_t m = 98, n = 20, few = 2, strides_a[] = {0, k, 1}, strides_y[] = {0, n, 1};
    Tensor a = Tensor::empty({1, m, k}, {DType::bf16});
    for (std::int64_t i = 0; i < a.numel(); ++i)
      a.data<bf16>()[i] = bf16((i * 37 % 101 - 50) / 9.0f);
    const Tensor b = normal({1, k, n}, dtype, 23), first = a.view({1, few, k}, strides_a, 0);
    on_every_target([&, dtype = dtype] {
      const Tensor expected = product(first, b, {}, Activation::relu);
      expect_product(first, b, {}, Activation::relu, expected);
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        const Tensor y = product(a, b, {}, Activation::relu);
        ASSERT_TRUE(same_bits(y.view({1, few, n}, strides_y, 0), expected)) << to_string(dtype);
        ASSERT_TRUE(same_bits(packed_product(a, b, {}, Activation::relu), y)) << to_string(dtype);
      }
    });
  }
  set_num_threads(before);
}

TEST(Gemm, NanAndInfinityReachTheirRowAndColumnOnly) {
  on_every_target([] {
    for (const DType dtype : kDTypes) {
      for (const std::int64_t m : {2, 20, 70}) {
        const std::int64_t n = 45, k = 37;
        Tensor a = normal({1, m, k}, dtype, 22), b = Tensor::full({1, k, n}, 0.5, {dtype});
        dispatch_float(dtype, [&]<class T>() {
          a.data<T>()[1 * k + k - 1] = T(kInf);
          b.data<T>()[3 * n + n - 1] = T(kNan);
        });
        for (const Tensor& y : {product(a, b), packed_product(a, b)}) {
          const float* out = y.data<float>();
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              const float value = out[i * n + j];
              if (j == n - 1) {
                ASSERT_TRUE(std::isnan(value)) << i << ", " << j;
              } else if (i == 1) {
                ASSERT_EQ(value, kInf) << i << ", " << j;
              } else {
                ASSERT_TRUE(std::isfinite(value)) << i << ", " << j;
              }
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv
