// A factor that heads share: where they lie in memory decides how often it is read, never the
// result (rows matmul_* of the operator table hold that).
#include "ops/fold.h"

#include <gtest/gtest.h>

#include "qkv/autograd.h"
#include "qkv/memory.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/threads.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv {
namespace {

using Axes = std::vector<int>;

TEST(Fold, FindsTheAxesThatShareAMatrix) {
  const Tensor b = Tensor::zeros({2, 3, 4, 5});
  const auto shared = [&](const Shape& a) { return shared_axes(Tensor::zeros(a), b); };
  EXPECT_EQ(shared({6, 4}), (Axes{0, 1}));
  EXPECT_EQ(shared({1, 6, 4}), (Axes{0, 1}));
  EXPECT_EQ(shared({3, 6, 4}), Axes{0});
  EXPECT_EQ(shared({2, 1, 6, 4}), Axes{1});
  EXPECT_EQ(shared({2, 3, 6, 4}), Axes{});
  EXPECT_EQ(shared({7, 2, 3, 6, 4}), Axes{});
}

TEST(Fold, ColumnsAreAViewWhereHeadsLieBesideThem) {
  const Tensor rows = Tensor::zeros({2, 4, 3, 5});
  const Tensor heads = transpose(rows, 1, 2);  // [2, 3, 4, 5]
  EXPECT_EQ(axes_beside_columns(heads, {0, 1}), Axes{1});
  const Tensor folded = as_columns(heads, {1});
  EXPECT_EQ(folded.raw(), rows.raw());
  EXPECT_EQ(folded.shape(), (Shape{2, 1, 4, 15}));
  const Tensor back = from_columns(folded, {1}, heads.shape());
  EXPECT_EQ(back.raw(), rows.raw());
  EXPECT_EQ(back.shape(), heads.shape());
  EXPECT_EQ(back.stride(1), heads.stride(1));
  EXPECT_EQ(axes_beside_columns(Tensor::zeros({2, 3, 4, 5}), {0, 1}), Axes{});
  EXPECT_EQ(axes_beside_columns(transpose(Tensor::zeros({2, 3, 5, 4}), 2, 3), {0, 1}),
            (Axes{0, 1}));
}

TEST(Fold, ColumnsAreACopyWhereTheyDoNot) {
  const Tensor x = Generator(1).normal({2, 3, 4, 5});
  const Tensor folded = as_columns(x, {0, 1});
  EXPECT_EQ(folded.shape(), (Shape{1, 1, 4, 30}));
  EXPECT_EQ(test::bytes_of(contiguous(from_columns(folded, {0, 1}, x.shape()))), test::bytes_of(x));
}

// The gradient of E [k, S] is made once, not for every head.
TEST(Fold, AGradientTakesNoMemoryPerHead) {
  const std::int64_t k = 128, length = 2048, heads = 64, size = 2;
  const test::KeepSettings keep;
  set_num_threads(2);  // each has some memory of its own
  const Tensor e = Generator(2).normal({k, length});
  for (const bool beside : {true, false}) {
    const Tensor b = beside ? transpose(Generator(3).normal({1, length, heads, size}), 1, 2)
                            : Generator(3).normal({1, heads, length, size});
    const Tensor dy = Generator(4).normal({1, heads, k, size});
    Tape tape;
    const Tensor y = matmul(e, b);
    reset_peak_memory(kCpu);
    const std::size_t before = memory_use(kCpu).now;
    const Gradients gradients = tape.backward(y, dy);
    const auto bytes_of_e = static_cast<std::size_t>(k * length) * sizeof(float);
    EXPECT_LT(memory_use(kCpu).peak - before, 16 * bytes_of_e) << beside;
    EXPECT_EQ(gradients[e].shape(), e.shape());
  }
}

}  // namespace
}  // namespace qkv
