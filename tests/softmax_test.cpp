#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/cpu.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "support/values.h"

namespace qkv {
namespace {

using Floats = std::vector<float>;
using test::kInf;
using test::kNan;

Floats floats_of(const Tensor& x) { return to(x, DType::f32).to_vector<float>(); }

// In double, along `axis` of a row-major array.
std::vector<double> reference(const Floats& x, const Shape& shape, int axis) {
  std::int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t count = shape[axis], outer = shape.numel() / (count * inner);
  std::vector<double> y(x.size());
  for (std::int64_t slice = 0; slice < outer * inner; ++slice) {
    const std::int64_t first = slice / inner * count * inner + slice % inner;
    const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(first + i * inner); };
    double max = -kInf, sum = 0;
    for (std::int64_t i = 0; i < count; ++i) max = std::max(max, double{x[at(i)]});
    for (std::int64_t i = 0; i < count; ++i) sum += std::exp(x[at(i)] - max);
    for (std::int64_t i = 0; i < count; ++i) y[at(i)] = std::exp(x[at(i)] - max) / sum;
  }
  return y;
}

// Every test runs on every instruction set that the machine has.
class Softmax : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    before_ = cpu_target();
    set_cpu_target(GetParam());
  }
  void TearDown() override { set_cpu_target(before_); }

 private:
  std::string before_;
};
INSTANTIATE_TEST_SUITE_P(Targets, Softmax, ::testing::ValuesIn(cpu_targets()),
                         [](const auto& test) { return test.param; });

TEST_P(Softmax, MatchesDoubleAlongEveryAxisInEveryDtype) {
  Generator random(1);
  const Shape shape{3, 5, 2, 37};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const double step = dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const Tensor x = random.normal(shape, 0, 5, dtype);
    for (int axis = -4; axis < 4; ++axis) {
      const Tensor y = softmax(x, axis);
      ASSERT_EQ(y.dtype(), dtype);
      ASSERT_EQ(y.shape(), shape);
      const auto expected = reference(floats_of(x), shape, axis < 0 ? axis + 4 : axis);
      const Floats got = floats_of(y);
      for (std::size_t i = 0; i < got.size(); ++i) {
        // Half a step of the result, and of a subnormal f16 where the result is that small.
        ASSERT_NEAR(got[i], expected[i], step * expected[i] + 0x1p-25)
            << to_string(dtype) << " axis " << axis << " element " << i;
      }
    }
  }
}

TEST_P(Softmax, IsExactToAFewRoundingsInLongRows) {
  const Shape shape{2, 100003};
  const Tensor x = Generator(2).normal(shape, 0, 2);
  const auto expected = reference(floats_of(x), shape, 1);
  const Floats got = floats_of(softmax(x));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i] / expected[i], 1, 1e-6) << i;
  }
}

TEST_P(Softmax, GivesZerosWhereAllIsHidden) {
  const Tensor x = Tensor::from(Floats{-kInf, -kInf, -kInf, 0, -kInf, 0}, {2, 3});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(floats_of(softmax(to(x, dtype))), (Floats{0, 0, 0, 0.5f, 0, 0.5f}));
  }
}

TEST_P(Softmax, SpreadsNanOverItsRowOnly) {
  for (const float other : {0.0f, -kInf, kNan}) {
    const Tensor x = Tensor::from(Floats{kNan, other, other, other, 1, 1, 1, 1}, {2, 4});
    const Floats y = floats_of(softmax(x));
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(y[i])) << other;
    for (int i = 4; i < 8; ++i) EXPECT_EQ(y[i], 0.25f);
  }
}

TEST_P(Softmax, DoesNotOverflow) {
  const Tensor x = Tensor::from(Floats{1e30f, -1e30f, 3e38f, -3e38f, 2e38f, 2e38f}, {3, 2});
  EXPECT_EQ(floats_of(softmax(x)), (Floats{1, 0, 1, 0, 0.5f, 0.5f}));
}

TEST_P(Softmax, TakesViewsAndSmallShapes) {
  const Tensor x = Tensor::from(Floats{0, 1, 2, 0, 1, 2}, {2, 3});
  EXPECT_EQ(floats_of(softmax(transpose(x, 0, 1), 0)), floats_of(transpose(softmax(x, 1), 0, 1)));
  EXPECT_EQ(floats_of(softmax(expand(Tensor::zeros({1}), {4}))), Floats(4, 0.25f));
  EXPECT_EQ(floats_of(softmax(Tensor::full({1}, 7))), Floats{1});
  EXPECT_EQ(softmax(Tensor::zeros({0, 3})).shape(), (Shape{0, 3}));
  EXPECT_EQ(softmax(Tensor::zeros({3, 0})).shape(), (Shape{3, 0}));
}

TEST_P(Softmax, GivesTheSameBitsAtAnyNumberOfThreads) {
  const Tensor x = Generator(3).normal({501, 77});
  const int before = num_threads();
  set_num_threads(1);
  const Floats one = floats_of(softmax(x));
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    EXPECT_EQ(floats_of(softmax(x)), one);
  }
  set_num_threads(before);
}

TEST(SoftmaxArguments, AreChecked) {
  EXPECT_ERROR("softmax: x must be floating point, got i32",
               softmax(Tensor::zeros({2}, {DType::i32})));
  EXPECT_ERROR("softmax: axis 2 is out of range for shape [2, 3]",
               softmax(Tensor::zeros({2, 3}), 2));
  EXPECT_ERROR("softmax: axis -3", softmax(Tensor::zeros({2, 3}), -3));
  EXPECT_ERROR("softmax", softmax(Tensor::zeros({}), 0));
  EXPECT_ERROR("", softmax(Tensor{}));
}

}  // namespace
}  // namespace qkv
