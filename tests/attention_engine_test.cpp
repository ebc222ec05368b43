// Every engine of this machine, and its decode engines, against sums in double.
#include "cpu/attention_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/decode_engine.h"
#include "qkv/cpu.h"
#include "support/targets.h"
#include "support/values.h"

namespace qkv::cpu {
namespace {

constexpr std::int64_t round_up_to(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

template <class T>
struct Matrix {
  std::int64_t rows, columns, stride;
  std::vector<T> data;

  // `room` rows exist; what lies outside rows x columns is `outside`.
  Matrix(std::int64_t m, std::int64_t n, std::int64_t room, std::int64_t pitch, float outside)
      : rows(m),
        columns(n),
        stride(pitch),
        data(static_cast<std::size_t>(room * pitch), T(outside)) {
    std::mt19937 random(static_cast<unsigned>(m * 1000 + n));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) data[index(i, j)] = T(normal(random));
    }
  }
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * stride + j);
  }
  double get(std::int64_t i, std::int64_t j) const { return static_cast<float>(data[index(i, j)]); }
};

using test::kNan;

// c must be start + A B, with B(k, j) = b(j, k) or b(k, j).
template <class T>
void expect_product(const Matrix<T>& a, const Matrix<T>& b, bool transposed, float start,
                    const std::vector<float>& c, std::int64_t stride) {
  const std::int64_t columns = transposed ? b.rows : b.columns;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = start, magnitude = std::abs(start);
      for (std::int64_t k = 0; k < a.columns; ++k) {
        const double term = a.get(i, k) * (transposed ? b.get(j, k) : b.get(k, j));
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(c[static_cast<std::size_t>(i * stride + j)], sum, magnitude * 4e-6)
          << i << ", " << j << " of " << a.rows << " x " << columns << " x " << a.columns;
    }
  }
}

// A as the engine turns it, with NaN in the rows that are not there.
template <class T>
std::vector<T> turn(const AttentionEngine& engine, const Matrix<T>& a, std::int64_t depth) {
  const std::int64_t together = engine.rows_together, rows = round_up_to(a.rows, together);
  std::vector<T> padded(static_cast<std::size_t>(rows * depth), T(kNan)), turned(padded.size());
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      padded[static_cast<std::size_t>(i * depth + k)] = a.data[a.index(i, k)];  // zeros past k
    }
  }
  for (std::int64_t i = 0; i < rows; i += together) {
    engine.turn(padded.data() + i * depth, depth, depth, turned.data() + i * depth);
  }
  return turned;
}

template <class T>
void check_engine(const AttentionEngine& engine, std::int64_t m, std::int64_t n, std::int64_t k,
                  bool transposed, bool accumulate) {
  const std::int64_t depth = round_up_to(k, engine.depth_multiple);
  const std::int64_t columns = round_up_to(n, engine.column_multiple);
  const std::int64_t room = round_up_to(m, engine.row_multiple);
  const Matrix<T> a(m, k, room, depth + 16, 0);
  // Rows of B stand in memory that ends with the last element, NaN between rows: neither may be
  // read.
  Matrix<T> b(transposed ? n : k, transposed ? k : n, transposed ? n : k, (transposed ? k : n) + 3,
              kNan);
  b.data.resize(b.data.size() - 3);
  std::vector<T> packed(static_cast<std::size_t>(columns * depth), T(kNan));
  const TileExtents size{m, n, k}, padded{m, transposed ? columns : n, k};
  (transposed ? engine.pack_transposed : engine.pack)(b.data.data(), b.stride, b.rows, padded,
                                                      packed.data());
  const std::int64_t stride = columns + 8;
  std::vector<float> c(static_cast<std::size_t>(room * stride), 0.5f);
  if (engine.begin != nullptr) engine.begin();
  engine.multiply({a.data.data(), a.stride}, {packed.data(), columns, k}, c.data(), stride, size,
                  accumulate);
  if (engine.end != nullptr) engine.end();
  expect_product(a, b, transposed, accumulate ? 0.5f : 0.0f, c, stride);
  if (engine.rows_together == 1) return;
  const std::vector<T> turned = turn(engine, a, depth);
  std::vector<float> same(c.size(), 0.5f);
  engine.multiply({turned.data(), depth, true}, {packed.data(), columns, k}, same.data(), stride,
                  size, accumulate);
  same.resize(static_cast<std::size_t>(m * stride));  // the row after the last may be touched
  c.resize(same.size());
  ASSERT_EQ(same, c) << "turned";
}

template <class T>
void check_shapes(const AttentionEngine& engine) {
  SCOPED_TRACE(engine.name);
  for (const std::int64_t m : {1, 2, 3, 7, 12, 13, 17, 31, 48, 64}) {
    for (const std::int64_t n : {1, 7, 8, 9, 64, 100}) {
      for (const std::int64_t k : {1, 4, 7, 8, 31, 64, 100, 520}) {
        for (const bool transposed : {false, true}) {
          check_engine<T>(engine, m, n, k, transposed, (m + n + k) % 2 == 0);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionEngine, MultipliesTilesOfEveryShape) {
  const std::string before = cpu_target();
  for (const std::string& target : cpu_targets()) {
    SCOPED_TRACE(target);
    set_cpu_target(target);
    check_shapes<float>(attention_engine(DType::f32));
    const AttentionEngine& engine = attention_engine(DType::bf16);
    if (engine.operand == DType::bf16) check_shapes<bf16>(engine);
  }
  set_cpu_target(before);
}

// As bf16(float) rounds, whatever the number.
TEST(AttentionEngine, StoresScaledRowsRounded) {
  const AttentionEngine& engine = attention_engine(DType::bf16);
  if (engine.store_scaled == nullptr) GTEST_SKIP() << "this machine has no instruction for it";
  std::vector<float> from = {0,      -0.0f,   1,       1.00390625f,   1.01171875f, 3.4e38f,
                             1e-40f, -3e-39f, 1e-45f,  kNan,          -kNan,       HUGE_VALF,
                             1e30f,  65536,   1e-38f,  1.0039063692f, 7,           -HUGE_VALF,
                             0.1f,   -0.3f,   2.7e38f, 5e-41f,        -1e38f};
  for (const float factor : {1.0f, 0.3f, -2.0f, 1e-20f, kNan}) {
    for (std::size_t count = 0; count <= from.size(); ++count) {
      std::vector<bf16> to(count + 1, bf16(42.0f));
      engine.store_scaled(from.data(), factor, static_cast<std::int64_t>(count), to.data());
      for (std::size_t i = 0; i < count; ++i) {
        const bf16 expected(from[i] * factor);
        if (std::isnan(static_cast<float>(expected))) {
          EXPECT_TRUE(std::isnan(static_cast<float>(to[i]))) << from[i];
        } else {
          EXPECT_EQ(to[i].bits, expected.bits) << from[i] << " * " << factor;
        }
      }
      EXPECT_EQ(static_cast<float>(to[count]), 42);
    }
  }
}

// Of an engine whose elements are T.
template <class T>
void check_decode_engine(const DecodeEngine& engine) {
  const auto bits = [](const Matrix<T>& x) {
    return reinterpret_cast<const std::uint16_t*>(x.data.data());
  };
  for (std::int64_t rows = 1; rows <= DecodeEngine::kMostRows; rows += rows == 1 ? 1 : 2) {
    for (const std::int64_t keys : {1, 5, 8, 11, 64, 67, 200}) {
      for (const std::int64_t size : {1, 8, 24, 40, 61, 64, 128, 300, 512}) {
        Matrix<T> x(keys, size, keys, size + 3, kNan);
        x.data.resize(x.data.size() - 3);
        const bool from_memory = (rows / 2 + keys + size) % 2 == 0;  // is asked for early
        const DecodeEngine::Right right{bits(x), x.stride, keys, size, from_memory};

        const Matrix<T> q(rows, size, rows, round_up_to(size, 8), 0);
        const std::int64_t score_stride = round_up_to(keys, 8) + 4;
        std::vector<float> scores(static_cast<std::size_t>(rows * score_stride), kNan);
        engine.scores({bits(q), q.stride, rows}, right, scores.data(), score_stride);
        expect_product(q, x, true, 0, scores, score_stride);

        const Matrix<T> p(rows, keys, rows, round_up_to(keys, 8), 0);
        const std::int64_t out_stride = round_up_to(size, 8) + 4;
        std::vector<float> out(static_cast<std::size_t>(rows * out_stride), 0.25f);
        engine.values({bits(p), p.stride, rows}, right, out.data(), out_stride);
        expect_product(p, x, false, 0.25f, out, out_stride);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DecodeEngine, Bf16) {
  const DecodeEngine* engine = neon_bf16_decode();
  if (engine == nullptr) GTEST_SKIP() << "this machine has no decode engine for bf16";
  check_decode_engine<bf16>(*engine);
}

TEST(DecodeEngine, F16) {
  const DecodeEngine* engine = neon_f16_decode();
  if (engine == nullptr) GTEST_SKIP() << "this machine has no decode engine for f16";
  check_decode_engine<f16>(*engine);
}

}  // namespace
}  // namespace qkv::cpu
