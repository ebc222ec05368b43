// Mistakes that were made once.
#include <cmath>
#include <limits>

#include "expect_error.h"
#include "qkv/attention.h"
#include "qkv/cpu.h"
#include "qkv/ops.h"
#include "qkv/random.h"

namespace qkv {
namespace {

class AttentionRegression : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    before_ = cpu_target();
    set_cpu_target(GetParam());
  }
  void TearDown() override { set_cpu_target(before_); }

 private:
  std::string before_;
};
INSTANTIATE_TEST_SUITE_P(Targets, AttentionRegression, ::testing::ValuesIn(cpu_targets()),
                         [](const auto& test) { return test.param; });

// Emulated f16 conversions read -inf as -65536, so a fully masked row saw everything.
TEST_P(AttentionRegression, AnInfiniteF16BiasHides) {
  Generator random(1);
  const Shape shape{1, 1, 19, 16};
  const Tensor q = random.normal(shape, 0, 1, DType::f16);
  AttentionOptions options;
  options.bias =
      Bias::fixed(Tensor::full({19, 19}, -std::numeric_limits<double>::infinity(), {DType::f16}));
  const AttentionForward forward = attention_forward(q, q, q, options);
  for (const float x : to(forward.out, DType::f32).to_vector<float>()) ASSERT_EQ(x, 0);
  for (const float x : forward.lse.to_vector<float>()) ASSERT_EQ(x, -HUGE_VALF);
}

// Keys of a tile past the causal diagonal were not computed, and their weights not cleared.
TEST_P(AttentionRegression, WeightsPastTheDiagonalAreZero) {
  Generator random(2);
  for (int repeat = 0; repeat < 4; ++repeat) {  // a dirty heap, to have something to read
    const Tensor q = random.normal({1, 1, 17, 3}), k = random.normal({1, 1, 43, 3});
    AttentionOptions options;
    options.mask = Mask::causal() & Mask::at_offset(3);
    const std::vector<float> p = attention_weights(q, k, options).to_vector<float>();
    for (std::int64_t i = 0; i < 17; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < 43; ++j) {
        const float weight = p[static_cast<std::size_t>(i * 43 + j)];
        if (j > i + 3) {
          ASSERT_EQ(weight, 0) << i << ", " << j;
        }
        sum += weight;
      }
      ASSERT_NEAR(sum, 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace qkv
