// Operators that rearrange, on tensors whose values are their row-major index.
#include <cmath>
#include <numeric>
#include <vector>

#include "expect_error.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

using Floats = std::vector<float>;

Tensor indexed(const Shape& shape) {
  Floats values(static_cast<std::size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, shape);
}

TEST(Transpose, SwapsAxesWithoutMovingBytes) {
  const Tensor x = indexed({2, 3});
  const Tensor t = transpose(x, 0, 1);
  EXPECT_EQ(t.raw(), x.raw());
  EXPECT_EQ(t.shape(), (Shape{3, 2}));
  EXPECT_EQ(t.to_vector<float>(), (Floats{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(transpose(t, -1, -2).to_vector<float>(), x.to_vector<float>());
  EXPECT_ERROR("transpose: axis 2 is out of range for shape [2, 3]", transpose(x, 0, 2));
}

TEST(Permute, TakesAnyOrder) {
  const Tensor y = permute(indexed({2, 3, 4}), {2, 0, -2});
  EXPECT_EQ(y.shape(), (Shape{4, 2, 3}));
  const Floats values = y.to_vector<float>();
  std::size_t at = 0;
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 2; ++b) {
      for (int c = 0; c < 3; ++c) EXPECT_EQ(values[at++], (b * 3 + c) * 4 + a);
    }
  }
  EXPECT_ERROR("needs 3 axes, got 2", permute(indexed({1, 1, 1}), {0, 1}));
  EXPECT_ERROR("axis -3 is named twice", permute(indexed({1, 1, 1}), {0, 1, -3}));
}

TEST(Slice, KeepsAPart) {
  const Tensor x = indexed({3, 4});
  EXPECT_EQ(slice(x, 0, 1, 3).to_vector<float>(), (Floats{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(slice(x, -1, 1, 3).to_vector<float>(), (Floats{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(slice(slice(x, 1, 1, 4), 1, 1, 2).to_vector<float>(), (Floats{2, 6, 10}));
  EXPECT_EQ(slice(x, 0, 3, 3).numel(), 0);
  EXPECT_ERROR("[1, 5) is not within axis 1 of shape [3, 4]", slice(x, 1, 1, 5));
  EXPECT_ERROR("slice", slice(x, 0, -1, 2));
  EXPECT_ERROR("slice", slice(x, 0, 2, 1));
}

TEST(Reshape, IsAViewOfAContiguousTensor) {
  const Tensor x = indexed({2, 6});
  EXPECT_EQ(reshape(x, {3, 4}).raw(), x.raw());
  EXPECT_EQ(reshape(x, {-1, 2}).shape(), (Shape{6, 2}));
  EXPECT_EQ(reshape(x, {12}).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(reshape(indexed({}), {1, 1}).shape(), (Shape{1, 1}));
  EXPECT_EQ(reshape(indexed({0, 3}), {3, 0}).shape(), (Shape{3, 0}));
}

TEST(Reshape, CopiesWhereStridesDoNotAllow) {
  const Tensor x = indexed({2, 3});
  const Tensor y = reshape(transpose(x, 0, 1), {6});
  EXPECT_NE(y.raw(), x.raw());
  EXPECT_EQ(y.to_vector<float>(), (Floats{0, 3, 1, 4, 2, 5}));
}

TEST(Reshape, RefusesOtherCounts) {
  const Tensor x = indexed({2, 6});
  EXPECT_ERROR("[2, 6] has 12 elements, [5] has 5", reshape(x, {5}));
  EXPECT_ERROR("reshape", reshape(x, {-1, 5}));
  EXPECT_ERROR("at most one extent may be -1", reshape(x, {-1, -1}));
  EXPECT_ERROR("negative", reshape(x, {-2, -6}));
  EXPECT_ERROR("", reshape(x, {-1, 0}));
  EXPECT_ERROR("addressed", reshape(x, {1LL << 40, 1LL << 40}));
  EXPECT_ERROR("", reshape(x, {-1, 1LL << 40, 1LL << 40}));
}

TEST(Expand, RepeatsWithoutCopying) {
  const Tensor x = indexed({2, 1});
  const Tensor y = expand(x, {3, 2, 2});
  EXPECT_EQ(y.raw(), x.raw());
  EXPECT_EQ(y.to_vector<float>(), (Floats{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_ERROR("[2, 1] does not broadcast to [3, 1]", expand(x, {3, 1}));
  EXPECT_ERROR("more axes", expand(x, {2}));
  EXPECT_EQ(expand(x, {2, 0}).numel(), 0);
}

TEST(Contiguous, CopiesOnlyWhenNeeded) {
  const Tensor x = indexed({2, 3});
  EXPECT_EQ(contiguous(x).raw(), x.raw());
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_NE(y.raw(), x.raw());
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_EQ(y.to_vector<float>(), (Floats{0, 3, 1, 4, 2, 5}));
}

TEST(To, ConvertsBetweenAllDtypes) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32,
                          DType::i64, DType::i8,   DType::u8,  DType::boolean};
  const Tensor x = Tensor::from(Floats{0, 1, 1, 0, 1, 0}, {2, 3});
  for (const DType from : dtypes) {
    for (const DType via : dtypes) {
      const Tensor y = to(to(transpose(to(x, from), 0, 1), via), DType::f32);
      EXPECT_EQ(y.to_vector<float>(), (Floats{0, 0, 1, 1, 1, 0}))
          << to_string(from) << " to " << to_string(via);
    }
  }
  EXPECT_EQ(to(x, DType::f32).raw(), x.raw());
}

TEST(To, RoundsAndTruncates) {
  const Tensor x = Tensor::from(Floats{1.00390625f, -2.75f, 65520}, {3});
  EXPECT_EQ(to(to(x, DType::bf16), DType::f32).to_vector<float>(), (Floats{1, -2.75f, 65536}));
  EXPECT_EQ(float(to(x, DType::f16).to_vector<f16>()[2]), HUGE_VALF);
  EXPECT_EQ(to(x, DType::i32).to_vector<std::int32_t>()[1], -2);
  EXPECT_EQ(to(x, DType::boolean).to_vector<bool>(), (std::vector<bool>{true, true, true}));
}

TEST(Concat, JoinsAlongAnyAxis) {
  const Tensor a = indexed({2, 2}), b = indexed({2, 1});
  EXPECT_EQ(concat({a, b}, 1).to_vector<float>(), (Floats{0, 1, 0, 2, 3, 1}));
  EXPECT_EQ(concat({a, a}, 0).shape(), (Shape{4, 2}));
  EXPECT_EQ(concat({transpose(a, 0, 1), b}, -1).to_vector<float>(), (Floats{0, 2, 0, 1, 3, 1}));
  EXPECT_EQ(concat({indexed({2, 0}), b}, 1).to_vector<float>(), (Floats{0, 1}));
  const Tensor flags = Tensor::full({1, 2}, 1, {DType::boolean});
  EXPECT_EQ(concat({flags, flags}, 0).to_vector<bool>(), std::vector<bool>(4, true));
}

TEST(Concat, RefusesWhatDoesNotFit) {
  const Tensor a = indexed({2, 2});
  EXPECT_ERROR("at least one tensor", concat({}, 0));
  EXPECT_ERROR("[3, 2] does not match [2, 2] off axis 1", concat({a, indexed({3, 2})}, 1));
  EXPECT_ERROR("concat", concat({a, indexed({2})}, 0));
  EXPECT_ERROR("concat", concat({a, to(a, DType::f16)}, 0));
  EXPECT_ERROR("axis 2 is out of range", concat({a, a}, 2));
}

TEST(Views, RefuseUndefinedTensors) {
  const Tensor none;
  EXPECT_ERROR("", transpose(none, 0, 0));
  EXPECT_ERROR("", slice(none, 0, 0, 0));
  EXPECT_ERROR("", to(none, DType::f16));
  EXPECT_ERROR("", reshape(none, {1}));
  EXPECT_ERROR("", expand(none, {1}));
  EXPECT_ERROR("", concat({none}, 0));
}

}  // namespace
}  // namespace qkv
