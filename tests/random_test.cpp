#include "qkv/random.h"

#include <cmath>
#include <set>
#include <vector>

#include "expect_error.h"
#include "qkv/threads.h"

namespace qkv {
namespace {

using Words = std::array<std::uint32_t, 4>;

// philox4x32-10 of kat_vectors in Random123 (Salmon et al. 2011).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(num_threads()) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(before_); }

 private:
  int before_;
};

std::vector<float> draw_normal(int threads, std::uint64_t seed, const Shape& shape) {
  const ThreadCount guard(threads);
  return Generator(seed).normal(shape).to_vector<float>();
}

TEST(Generator, GivesTheSameBitsAtAnyNumberOfThreads) {
  const Shape shape{3, 5, 7001};  // not a multiple of a block, nor of four
  const std::vector<float> one = draw_normal(1, 7, shape);
  EXPECT_EQ(one, draw_normal(2, 7, shape));
  EXPECT_EQ(one, draw_normal(5, 7, shape));
  EXPECT_NE(one, draw_normal(1, 8, shape));
}

TEST(Generator, NeverRepeatsARange) {
  Generator a(1), b(1);
  const Tensor first = a.uniform({5}), second = a.uniform({5}), third = a.normal({1});
  std::set<float> values;
  for (const Tensor& x : {first, second}) {
    for (const float v : x.to_vector<float>()) values.insert(v);
  }
  EXPECT_EQ(values.size(), 10u);
  EXPECT_EQ(b.uniform({5}).to_vector<float>(), first.to_vector<float>());
  EXPECT_EQ(b.uniform({5}).to_vector<float>(), second.to_vector<float>());
  EXPECT_EQ(b.normal({1}).to_vector<float>(), third.to_vector<float>());
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

Moments moments(const std::vector<float>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const float v : values) m.mean += v / n;
  for (const float v : values) {
    const double d = v - m.mean;
    m.variance += d * d / n;
    m.skewness += d * d * d / n;
    m.kurtosis += d * d * d * d / n;
  }
  m.skewness /= std::pow(m.variance, 1.5);
  m.kurtosis /= m.variance * m.variance;
  return m;
}

constexpr std::int64_t kDraws = 1 << 20;

// Five standard errors of each moment; the draws are fixed, so this cannot fail by chance later.
TEST(Generator, NormalHasTheMomentsOfANormal) {
  const double n = kDraws;
  const Moments m = moments(Generator(3).normal({kDraws}, 2, 3).to_vector<float>());
  EXPECT_NEAR(m.mean, 2, 5 * 3 / std::sqrt(n));
  EXPECT_NEAR(m.variance, 9, 5 * 9 * std::sqrt(2 / n));
  EXPECT_NEAR(m.skewness, 0, 5 * std::sqrt(6 / n));
  EXPECT_NEAR(m.kurtosis, 3, 5 * std::sqrt(24 / n));
}

TEST(Generator, NormalDrawsAreUncorrelated) {
  const std::vector<float> x = Generator(4).normal({kDraws}).to_vector<float>();
  for (const std::size_t lag : {1, 2, 3, 4}) {  // inside and across a block of four
    double sum = 0;
    for (std::size_t i = lag; i < x.size(); ++i) sum += double{x[i]} * x[i - lag];
    EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(double{kDraws})) << "lag " << lag;
  }
}

TEST(Generator, UniformFillsItsRange) {
  const double n = kDraws;
  const std::vector<float> x = Generator(5).uniform({kDraws}, -1, 3).to_vector<float>();
  const Moments m = moments(x);
  EXPECT_NEAR(m.mean, 1, 5 * 4 / std::sqrt(12 * n));
  EXPECT_NEAR(m.variance, 16.0 / 12, 5 * (16.0 / 12) * std::sqrt(0.8 / n));
  std::vector<int> bins(64);
  for (const float v : x) {
    ASSERT_GE(v, -1);
    ASSERT_LE(v, 3);
    ++bins[std::min<std::size_t>(63, static_cast<std::size_t>((v + 1) * 16))];
  }
  double chi_squared = 0;
  for (const int count : bins) chi_squared += (count - n / 64) * (count - n / 64) / (n / 64);
  EXPECT_LT(chi_squared, 63 + 5 * std::sqrt(2.0 * 63));
}

TEST(Generator, RoundsTheSameDrawsToHalves) {
  const auto wide = Generator(6).normal({1000}).to_vector<float>();
  const auto half = Generator(6).normal({1000}, 0, 1, DType::f16).to_vector<f16>();
  const auto brain = Generator(6).normal({1000}, 0, 1, DType::bf16).to_vector<bf16>();
  for (std::size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(half[i].bits, f16(wide[i]).bits);
    ASSERT_EQ(brain[i].bits, bf16(wide[i]).bits);
  }
  EXPECT_ERROR("floating-point", Generator(6).normal({2}, 0, 1, DType::i32));
}

TEST(Generator, DrawsNothingForAnEmptyShape) {
  Generator a(9), b(9);
  EXPECT_EQ(a.normal({0, 4}).numel(), 0);
  EXPECT_EQ(a.normal({4}).to_vector<float>(), b.normal({4}).to_vector<float>());
}

}  // namespace
}  // namespace qkv
