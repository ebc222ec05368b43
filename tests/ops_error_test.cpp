// Bad arguments: an Error that names the operator and what it was given. And what else single
// operators promise that a table of values does not show.
#include <cmath>
#include <vector>

#include "expect_error.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::kInf;

using Floats = std::vector<float>;
using Ids = std::vector<std::int64_t>;

Tensor f32(const Shape& shape) { return Tensor::zeros(shape); }
Tensor i64(const Shape& shape) { return Tensor::zeros(shape, {DType::i64}); }

TEST(OpErrors, Views) {
  const Tensor x = f32({2, 3}), none;
  EXPECT_ERROR("transpose: axis 2 is out of range for shape [2, 3]", transpose(x, 0, 2));
  EXPECT_ERROR("transpose: x is undefined", transpose(none, 0, 1));
  EXPECT_ERROR("permute: shape [2, 3] needs 2 axes, got 1", permute(x, {0}));
  EXPECT_ERROR("permute: axis 0 is named twice", permute(x, {0, 0}));
  EXPECT_ERROR("permute: x is undefined", permute(none, {}));
  EXPECT_ERROR("slice: [1, 4) is not within axis 1 of shape [2, 3]", slice(x, 1, 1, 4));
  EXPECT_ERROR("slice: [2, 1) is not within axis 1 of shape [2, 3]", slice(x, 1, 2, 1));
  EXPECT_ERROR("slice: axis -3 is out of range for shape [2, 3]", slice(x, -3, 0, 1));
  EXPECT_ERROR("slice: x is undefined", slice(none, 0, 0, 1));
  EXPECT_ERROR("reshape: [2, 3] has 6 elements, [4] has 4", reshape(x, {4}));
  EXPECT_ERROR("reshape: [2, 3] has 6 elements, [4, 1] has 4", reshape(x, {4, -1}));
  EXPECT_ERROR("reshape: at most one extent may be -1", reshape(x, {-1, -1}));
  EXPECT_ERROR("reshape: an extent of -1 beside one of 0", reshape(f32({0}), {0, -1}));
  EXPECT_ERROR("reshape: x is undefined", reshape(none, {1}));
  EXPECT_ERROR("expand: [2, 3] does not broadcast to [2, 4]", expand(x, {2, 4}));
  EXPECT_ERROR("expand: [2, 3] has more axes than [3]", expand(x, {3}));
  EXPECT_ERROR("expand: x is undefined", expand(none, {3}));
  EXPECT_ERROR("contiguous: x is undefined", contiguous(none));
  EXPECT_ERROR("to: x is undefined", to(none, DType::bf16));
  EXPECT_ERROR("concat: needs at least one tensor", concat({}, 0));
  EXPECT_ERROR("concat: [2, 4] does not match [2, 3] off axis 0", concat({x, f32({2, 4})}, 0));
  EXPECT_ERROR("concat: [2, 3] i64 does not match [2, 3] f32", concat({x, i64({2, 3})}, 0));
  EXPECT_ERROR("concat: axis 2 is out of range for shape [2, 3]", concat({x}, 2));
  EXPECT_ERROR("concat: part 1 is undefined", concat({x, none}, 0));
}

TEST(OpErrors, ElementByElement) {
  const Tensor x = f32({2, 3}), ids = i64({2, 3}), none;
  EXPECT_ERROR("add: [2, 3] and [2] do not broadcast", add(x, f32({2})));
  EXPECT_ERROR("subtract: arguments must be floating point, got f32 and i64", subtract(x, ids));
  EXPECT_ERROR("mul: an argument is undefined", mul(x, none));
  EXPECT_ERROR("scale: x must be floating point, got i64 [2, 3]", scale(ids, 2));
  EXPECT_ERROR("scale: x is undefined", scale(none, 2));
  EXPECT_ERROR("sum: axis 2 is out of range for shape [2, 3]", sum(x, {2}));
  EXPECT_ERROR("sum: x must be floating point, got i64 [2, 3]", sum(ids));
  EXPECT_ERROR("sum: x is undefined", sum(none));
  EXPECT_ERROR("mean: x is undefined", mean(none));
  EXPECT_ERROR("mean: axis -3 is out of range for shape [2, 3]", mean(x, {-3}));
  EXPECT_ERROR("mean: shape [0, 3] has no elements", mean(f32({0, 3})));
  EXPECT_ERROR("softmax: axis 2 is out of range for shape [2, 3]", softmax(x, 2));
  EXPECT_ERROR("softmax: x must be floating point, got i64 [2, 3]", softmax(ids));
  EXPECT_ERROR("softmax: x is undefined", softmax(none));
  EXPECT_ERROR("activate: x must be floating point, got i64 [2, 3]", relu(ids));
  EXPECT_ERROR("activate: x is undefined", gelu(none));
  EXPECT_ERROR("gated: gate f32 [2, 3] and up f32 [3, 2] must agree",
               gated(x, f32({3, 2}), Activation::silu));
  EXPECT_ERROR("gated: gate f32 [2, 3] and up bf16 [2, 3] must agree",
               gated(x, to(x, DType::bf16), Activation::silu));
  EXPECT_ERROR("gated: gate must be floating point, got i64", gated(ids, ids, Activation::silu));
  EXPECT_ERROR("gated: up is undefined", gated(x, none, Activation::silu));
  EXPECT_ERROR("dropout: p must be in [0, 1), got 1", dropout(x, 1, 0));
  EXPECT_ERROR("dropout: p must be in [0, 1), got nan", dropout(x, std::nan(""), 0));
  EXPECT_ERROR("dropout: x must be floating point, got i64 [2, 3]", dropout(ids, 0.5, 0));
  EXPECT_ERROR(
      "activation 'gleu' is not known; there are none, relu, gelu, gelu_new, silu, tanh, linear, "
      "gelu_python, gelu_fast, gelu_tanh, gelu_pytorch_tanh, gelu_accurate, swish",
      activation_from_string("gleu"));
}

TEST(OpErrors, Products) {
  const Tensor x = f32({2, 3}), none;
  EXPECT_ERROR("got [2, 3] and [2, 3]", matmul(x, x));
  EXPECT_ERROR("matmul: a [..., M, K] and b [..., K, N] are needed, got [2, 3] and [3]",
               matmul(x, f32({3})));
  EXPECT_ERROR("matmul: a [2, 4, 3] and b [3, 3, 2] do not broadcast",
               matmul(f32({2, 4, 3}), f32({3, 3, 2})));
  EXPECT_ERROR("matmul: b must be floating point, got i64 [3, 2]", matmul(x, i64({3, 2})));
  EXPECT_ERROR("matmul: a is undefined", matmul(none, x));
  EXPECT_ERROR("linear: the last axis of x [2, 3] must match the 4 inputs of the weight [5, 4]",
               linear(x, f32({5, 4})));
  EXPECT_ERROR("linear: the last axis of x [2, 3] must match the 5 inputs of the weight [4, 5]",
               linear(x, f32({5, 4}), {}, {.transposed = true}));
  EXPECT_ERROR("linear: bias must be [5], got [4]", linear(x, f32({5, 3}), f32({4})));
  EXPECT_ERROR("linear: weight must be [N, K], got [3]", linear(x, f32({3})));
  EXPECT_ERROR("linear: weight must be floating point, got i64 [5, 3]", linear(x, i64({5, 3})));
  EXPECT_ERROR("linear: x is undefined", linear(none, f32({5, 3})));
  EXPECT_ERROR("linear: the packed weight is undefined", linear(x, PackedWeight()));
  EXPECT_ERROR("linear: the last axis of x [2, 3] must match the 4 inputs",
               linear(x, PackedWeight(f32({5, 4}))));
  EXPECT_ERROR("linear: bias must be [5], got [4]", linear(x, PackedWeight(f32({5, 3})), f32({4})));
  EXPECT_ERROR("PackedWeight: weight must be [N, K], got [3]", PackedWeight(f32({3})));
  EXPECT_ERROR("PackedWeight: weight is undefined", PackedWeight(none));
}

TEST(OpErrors, Layers) {
  const Tensor x = f32({2, 3}), ids = i64({2, 3}), none;
  EXPECT_ERROR("layer_norm: weight must be floating point [3] to fit x [2, 3], got f32 [2]",
               layer_norm(x, f32({2}), {}, 1e-5));
  EXPECT_ERROR("layer_norm: bias must be floating point [3] to fit x [2, 3], got i64 [3]",
               layer_norm(x, f32({3}), i64({3}), 1e-5));
  EXPECT_ERROR("layer_norm: x [] has no last axis to norm", layer_norm(f32({}), {}, {}, 1e-5));
  EXPECT_ERROR("layer_norm: x must be floating point, got i64", layer_norm(ids, {}, {}, 1e-5));
  EXPECT_ERROR("layer_norm: x is undefined", layer_norm(none, {}, {}, 1e-5));
  EXPECT_ERROR("rms_norm: eps must not be negative, got -1", rms_norm(x, {}, -1));
  EXPECT_ERROR("add_layer_norm: residual is undefined", add_layer_norm(x, none, {}, {}, 1e-5));
  EXPECT_ERROR("add_rms_norm: residual f32 [3] must match x f32 [2, 3]",
               add_rms_norm(x, f32({3}), {}, 1e-5));
  EXPECT_ERROR("embedding: ids must be i32 or i64, got f32 [2, 3]", embedding(x, x));
  EXPECT_ERROR("embedding: table must be floating point [V, D], got i64 [2, 3]",
               embedding(ids, ids));
  EXPECT_ERROR("embedding: id 5 at position 1 is not in the table of 2 rows",
               embedding(Tensor::from(Ids{1, 5}, {2}), x));
  EXPECT_ERROR("embedding: id -1 at position 0", embedding(Tensor::from(Ids{-1}, {1}), x));
  EXPECT_ERROR("embedding: ids is undefined", embedding(none, x));
  const Tensor q = f32({1, 2, 3, 4});
  EXPECT_ERROR("rotary: x must be floating point [B, H, S, D], got f32 [2, 3]", rotary(x, x, x));
  EXPECT_ERROR("with R <= D to fit x [1, 2, 3, 4], got [3, 3]",
               rotary(q, f32({3, 3}), f32({3, 3})));
  EXPECT_ERROR("with R <= D to fit x [1, 2, 3, 4], got [2, 3, 2]",
               rotary(q, f32({2, 3, 2}), f32({2, 3, 2})));
  EXPECT_ERROR("rotary: cos and sin must be f32 of one shape, got f32 [3, 2] and f32 [3, 1]",
               rotary(q, f32({3, 2}), f32({3, 1})));
  EXPECT_ERROR("rotary: cos and sin must be f32 of one shape", rotary(q, none, none));
}

TEST(OpErrors, CrossEntropy) {
  const Tensor x = f32({2, 3}), none;
  EXPECT_ERROR("cross_entropy: logits must be floating point [..., V], got i64 [2, 3]",
               cross_entropy(i64({2, 3}), i64({2})));
  EXPECT_ERROR("of logits [2, 3] without its last axis, got i64 [3]", cross_entropy(x, i64({3})));
  EXPECT_ERROR("of logits [2, 6, 3] without its last axis, got i64 [6, 2]",
               cross_entropy(f32({2, 6, 3}), i64({6, 2})));
  EXPECT_ERROR("got f32 [2]", cross_entropy(x, f32({2})));
  EXPECT_ERROR("cross_entropy: logits is undefined", cross_entropy(none, i64({2})));
  EXPECT_ERROR("cross_entropy: targets is undefined", cross_entropy(x, none));
  EXPECT_ERROR("cross_entropy: target 3 is not one of 3 classes, nor the ignored -100",
               cross_entropy(x, Tensor::from(Ids{0, 3}, {2})));
  EXPECT_ERROR("label_smoothing must be in [0, 1), got 1",
               cross_entropy(x, i64({2}), {.label_smoothing = 1}));
}

TEST(Embedding, GivesNoGradientToThePaddingRow) {
  const Tensor table = Generator(1).normal({4, 3});
  Tape tape;
  const Tensor y = embedding(Tensor::from(Ids{1, 2, 1, 3}, {4}), table, 1);
  const Gradients grads = tape.backward(sum(y));
  EXPECT_EQ(grads[table].to_vector<float>(), (Floats{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
}

TEST(Dropout, IsAFunctionOfSeedAndPositionAndKeepsTheMean) {
  const Tensor x = Tensor::full({200, 1001}, 1);
  const Floats a = dropout(x, 0.3, 7).to_vector<float>(), b = dropout(x, 0.3, 7).to_vector<float>();
  EXPECT_EQ(a, b);
  EXPECT_NE(a, dropout(x, 0.3, 8).to_vector<float>());
  // A smaller tensor sees the same positions.
  const Floats part = dropout(Tensor::full({5}, 1), 0.3, 7).to_vector<float>();
  EXPECT_EQ(part, Floats(a.begin(), a.begin() + 5));
  double mean = 0;
  for (const float value : a) mean += value / static_cast<double>(a.size());
  EXPECT_NEAR(mean, 1, 0.01);
  // So near to 1 that f32 cannot tell: nothing is kept, and nothing overflows.
  for (const float value : dropout(x, std::nextafter(1.0, 0.0), 7).to_vector<float>()) {
    ASSERT_EQ(value, 0);
  }
  EXPECT_EQ(dropout(x, 0, 7).id(), x.id());
}

TEST(Dropout, GivesTheGradientTheSameMask) {
  const Tensor x = Tensor::full({33, 7}, 1, {DType::bf16});
  Tape tape;
  const Tensor y = dropout(x, 0.5, 3);
  const Gradients grads = tape.backward(y, Tensor::full(y.shape(), 1, {DType::bf16}));
  EXPECT_EQ(test::bytes_of(grads[x]), test::bytes_of(y));
}

TEST(Linear, WithAPackedWeightGivesTheSameValues) {
  Generator random(9);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool transposed : {false, true}) {
      for (const std::int64_t rows : {0, 1, 7, 40}) {
        const Tensor x = random.normal({rows, 33}, 0, 1, dtype);
        const Tensor w = random.normal(transposed ? Shape{33, 21} : Shape{21, 33}, 0, 1, dtype);
        const Tensor bias = random.normal({21}, 0, 1, dtype);
        const PackedWeight packed(w, transposed);
        const LinearOptions options{.activation = Activation::gelu, .transposed = transposed};
        const auto got = test::values_of(linear(x, packed, bias, Activation::gelu));
        const auto want = test::values_of(linear(x, w, bias, options));
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i],
                      (dtype == DType::f32 ? 1e-5 : 1e-2) * (1 + std::abs(want[i])));
        }
      }
    }
  }
}

TEST(Linear, HasNoOutputsWithoutRowsOfTheWeight) {
  const Tensor x = f32({2, 3});
  EXPECT_EQ(linear(x, f32({0, 3})).shape(), (Shape{2, 0}));
  EXPECT_EQ(linear(x, PackedWeight(f32({0, 3}))).shape(), (Shape{2, 0}));
  Tape tape;
  const Tensor w = f32({0, 3}), y = linear(x, w);
  const Gradients grads = tape.backward(y, f32({2, 0}));
  EXPECT_EQ(grads[x].to_vector<float>(), Floats(6, 0.0f));
  EXPECT_EQ(grads[w].shape(), (Shape{0, 3}));
}

TEST(Reshape, IsAViewWhereTheStridesAllowIt) {
  const Tensor x = f32({2, 5, 12});
  const Tensor part = slice(x, 2, 4, 8);  // [2, 5, 4], rows apart
  EXPECT_EQ(reshape(part, {2, 5, 2, 2}).raw(), part.raw());
  EXPECT_EQ(reshape(part, {10, 4}).raw(), part.raw());
  EXPECT_EQ(reshape(part, {2, 1, 5, 4, 1}).raw(), part.raw());
  EXPECT_NE(reshape(part, {2, 20}).raw(), part.raw());
  const Tensor turned = transpose(x, 0, 1);  // [5, 2, 12]
  EXPECT_EQ(reshape(turned, {5, 2, 3, 4}).raw(), x.raw());
  EXPECT_NE(reshape(turned, {10, 12}).raw(), x.raw());
  EXPECT_EQ(reshape(expand(f32({1, 3}), {4, 3}), {2, 2, 3}).stride(0), 0);
}

TEST(CrossEntropy, IsNanWhenNothingCounts) {
  const Tensor x = Generator(1).normal({2, 5});
  Tape tape;
  const Tensor loss = cross_entropy(x, Tensor::full({2}, -100, {DType::i64}));
  EXPECT_TRUE(std::isnan(loss.to_vector<float>()[0]));
  EXPECT_EQ(tape.backward(loss)[x].to_vector<float>(), Floats(10, 0.0f));
}

TEST(CrossEntropy, TakesHiddenAndHugeLogits) {
  const Tensor x = Tensor::from(Floats{1e30f, -kInf, -1e30f, 3, -kInf, 3}, {2, 3});
  Tape tape;
  const Tensor loss = cross_entropy(x, Tensor::from(Ids{0, 2}, {2}));
  EXPECT_FLOAT_EQ(loss.to_vector<float>()[0], 0.5f * std::log(2.0f));
  EXPECT_EQ(tape.backward(loss)[x].to_vector<float>(), (Floats{0, 0, 0, 0.25f, 0, -0.25f}));
}

TEST(Activations, KeepNanAndReachTheirLimits) {
  const Tensor x = Tensor::from(Floats{std::nanf(""), kInf, -100, 100, 0}, {5});
  for (const Activation f : {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                             Activation::silu, Activation::tanh}) {
    const Floats y = activate(x, f).to_vector<float>();
    const float top = f == Activation::tanh ? 1 : kInf;
    EXPECT_TRUE(std::isnan(y[0])) << to_string(f);
    EXPECT_EQ(y[1], top) << to_string(f);
    EXPECT_NEAR(y[2], f == Activation::tanh ? -1 : 0, 1e-30) << to_string(f);
    EXPECT_EQ(y[3], f == Activation::tanh ? 1 : 100) << to_string(f);
    EXPECT_EQ(y[4], 0) << to_string(f);
  }
}

}  // namespace
}  // namespace qkv
