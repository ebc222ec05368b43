// What a tape promises (include/qkv/autograd.h), apart from the gradients of the operators, which
// ops_test.cpp has.
#include "qkv/autograd.h"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/random.h"

namespace qkv {
namespace {

using Floats = std::vector<float>;

Tensor vector_of(const Floats& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

TEST(Tape, RecordsOnlyWhileItLives) {
  const Tensor x = vector_of({1, 2});
  EXPECT_FALSE(Tape::recording());
  {
    const Tape tape;
    EXPECT_TRUE(Tape::recording());
    EXPECT_EQ(tape.size(), 0u);
    scale(mul(x, x), 2);
    EXPECT_EQ(tape.size(), 2u);
  }
  EXPECT_FALSE(Tape::recording());
}

TEST(Tape, AddsUpAValueUsedTwice) {
  const Tensor x = vector_of({3, -2});
  Tape tape;
  // x^2 + 5x + x: three uses, one of them of a product with itself.
  const Gradients grads = tape.backward(sum(add(add(mul(x, x), scale(x, 5)), x)));
  EXPECT_EQ(grads[x].to_vector<float>(), (Floats{12, 2}));
}

TEST(Tape, AddsUpWithoutWritingIntoWhatAnotherTensorGot) {
  // Both terms of the inner sum get one gradient; a second use of one must not change the other.
  const Tensor a = vector_of({1}), b = vector_of({1});
  Tape tape;
  const Tensor inner = add(a, b);
  const Gradients grads = tape.backward(sum(add(inner, scale(a, 3))));
  EXPECT_EQ(grads[a].to_vector<float>(), Floats{4});
  EXPECT_EQ(grads[b].to_vector<float>(), Floats{1});
}

TEST(Tape, TakesTheGradientOfAnyTensor) {
  const Tensor x = vector_of({1, 2, 3});
  Tape tape;
  const Gradients grads = tape.backward(scale(x, 2), vector_of({1, 10, 100}));
  EXPECT_EQ(grads[x].to_vector<float>(), (Floats{2, 20, 200}));
}

TEST(Tape, LeavesOutWhatTheLossDoesNotDependOn) {
  const Tensor x = vector_of({1}), other = vector_of({1});
  Tape tape;
  const Tensor unused = scale(other, 2);
  const Gradients grads = tape.backward(sum(x));
  EXPECT_TRUE(grads.contains(x));
  EXPECT_FALSE(grads.contains(other));
  EXPECT_FALSE(grads[other].defined());
  EXPECT_FALSE(grads.contains(unused));
  EXPECT_EQ(grads.size(), 1u);
}

TEST(Tape, KeepsGradientsOfResultsThatAreWatched) {
  const Tensor x = vector_of({2});
  Tape tape;
  const Tensor square = mul(x, x), cube = mul(square, x), unused = scale(x, 2);
  tape.watch(square);
  tape.watch(unused);
  const Gradients grads = tape.backward(sum(cube));
  EXPECT_EQ(grads[square].to_vector<float>(), Floats{2});
  EXPECT_EQ(grads[x].to_vector<float>(), Floats{12});
  EXPECT_FALSE(grads.contains(cube));
  EXPECT_FALSE(grads.contains(unused));  // watched, but the loss does not depend on it
}

TEST(Tape, KnowsATensorByItsCopiesAndNotByItsViews) {
  const Tensor x = vector_of({1, 2});
  const Tensor copy = x, view = slice(x, 0, 0, 2);
  Tape tape;
  const Gradients grads = tape.backward(sum(copy));
  EXPECT_TRUE(grads.contains(x));
  EXPECT_FALSE(grads.contains(view));
}

TEST(Tape, IsWalkedOnce) {
  const Tensor x = vector_of({1});
  Tape tape;
  const Tensor loss = sum(scale(x, 2));
  tape.backward(loss);
  EXPECT_EQ(tape.size(), 0u);
  EXPECT_ERROR("backward: this tape has been walked", tape.backward(loss));
  EXPECT_ERROR("scale: this tape has been walked", scale(x, 2));
  const TapePause pause;
  EXPECT_EQ(scale(x, 2).to_vector<float>(), Floats{2});
}

TEST(Tape, RefusesALossItCannotTake) {
  const Tensor x = vector_of({1, 2});
  Tape tape;
  const Tensor y = scale(x, 2);
  EXPECT_ERROR("backward: a loss has one element, got [2]", tape.backward(y));
  EXPECT_ERROR("backward: a loss has one element", tape.backward(Tensor()));
  EXPECT_ERROR("dy [3] must have the shape of y [2]", tape.backward(y, Tensor::zeros({3})));
  EXPECT_ERROR("no operator recorded on this tape made this tensor",
               tape.backward(x, Tensor::zeros({2})));
  // None of this has walked it.
  EXPECT_EQ(tape.backward(sum(y))[x].to_vector<float>(), (Floats{2, 2}));
}

TEST(Tape, NestsAndTheInnermostRecords) {
  const Tensor x = vector_of({3});
  Tape outer;
  const Tensor y = scale(x, 2);
  {
    Tape inner;
    const Tensor z = sum(mul(y, y));
    EXPECT_GE(inner.size(), 2u);
    EXPECT_EQ(outer.size(), 1u);
    const Gradients grads = inner.backward(z);
    EXPECT_EQ(grads[y].to_vector<float>(), Floats{12});  // to the inner tape y is given
    EXPECT_FALSE(grads.contains(x));
  }
  EXPECT_TRUE(Tape::recording());
  EXPECT_EQ(outer.backward(sum(y))[x].to_vector<float>(), Floats{2});
}

TEST(Tape, RecordsNothingWhilePaused) {
  const Tensor x = vector_of({3});
  Tape tape;
  const Tensor y = scale(x, 2);
  Tensor constant;
  {
    const TapePause pause;
    EXPECT_FALSE(Tape::recording());
    constant = mul(y, y);
    {
      Tape inside;  // a tape made during a pause records
      scale(x, 2);
      EXPECT_EQ(inside.size(), 1u);
    }
    EXPECT_FALSE(Tape::recording());
  }
  EXPECT_TRUE(Tape::recording());
  EXPECT_EQ(tape.size(), 1u);
  const Gradients grads = tape.backward(sum(mul(y, constant)));
  EXPECT_EQ(grads[x].to_vector<float>(), Floats{72});
  EXPECT_EQ(grads[constant].to_vector<float>(), Floats{6});
}

TEST(Tape, RecordsItsOwnThreadOnly) {
  const Tensor x = vector_of({3});
  Tape tape;
  const Tensor y = scale(x, 2);
  std::vector<Floats> found(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      EXPECT_FALSE(Tape::recording());
      for (int repeat = 0; repeat < 20; ++repeat) {
        Tape own;
        const Tensor z = sum(scale(mul(x, x), static_cast<double>(i)));
        found[i] = own.backward(z)[x].to_vector<float>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i], Floats{6 * static_cast<float>(i)});
  }
  EXPECT_EQ(tape.size(), 1u);
  EXPECT_EQ(tape.backward(sum(y))[x].to_vector<float>(), Floats{2});
}

// A tensor whose memory says when it is freed.
Tensor observed(std::weak_ptr<const void>& watch) {
  auto memory = std::make_shared<Floats>(4, 1.0f);
  watch = memory;
  return Tensor::wrap(memory->data(), {4}, DType::f32, memory);
}

TEST(Tape, FreesMemoryOnTheWalk) {
  std::weak_ptr<const void> early, late;
  std::optional<Tensor> first = observed(early), second = observed(late);
  const Tensor x = vector_of({1, 1, 1, 1});
  Tape tape;
  bool early_alive = false, late_alive = true;
  const Tensor a = mul(x, *first);
  Tensor mark = Tensor::empty({4});
  // Walked between the two products: what only the later one kept is gone, the rest is still there.
  Tape::record("probe", {a}, mark, [&](const Tensor& dy) {
    early_alive = !early.expired();
    late_alive = !late.expired();
    return std::vector{dy};
  });
  const Tensor loss = sum(mul(mark, *second));
  first.reset();
  second.reset();
  EXPECT_FALSE(early.expired());
  EXPECT_FALSE(late.expired());
  tape.backward(loss);
  EXPECT_TRUE(early_alive);
  EXPECT_FALSE(late_alive);
  EXPECT_TRUE(early.expired());
}

// A sum's gradient asks for neither term.
TEST(Tape, KeepsOnlyWhatGradientsNeed) {
  std::weak_ptr<const void> memory;
  std::optional<Tensor> term = observed(memory);
  const Tensor x = vector_of({1, 2, 3, 4});
  Tape tape;
  const Tensor loss = sum(add(x, *term));
  term.reset();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(tape.backward(loss)[x].to_vector<float>(), (Floats{1, 1, 1, 1}));
}

TEST(Tape, KeepsNoResultOfALinearMap) {
  const Tensor x = Tensor::full({2, 3}, 1), weight = Tensor::full({4, 3}, 0.5);
  Tape tape;
  const Tensor y = linear(x, weight, Tensor());
  EXPECT_FALSE(y.is_shared());
}

// Logits whose gradient lands where `lands` says, and which reach it through a view.
struct LossOfLogits {
  static constexpr std::int64_t kRows = 3, kClasses = 5;
  Tensor x = Generator(7).normal({kRows, kClasses});
  Tensor targets = Tensor::from(std::vector<std::int64_t>{4, -100, 2}, {kRows});
  const void* lands = nullptr;

  Tensor operator()(const Tensor& logits) {
    const std::int64_t strides[] = {kClasses, 1};
    const Tensor view = logits.view(logits.shape(), strides, 0);
    Tape::record("probe", {logits}, view, [this](const Tensor& dy) {
      lands = dy.raw();
      return std::vector{dy};
    });
    return cross_entropy(view, targets, {.label_smoothing = 0.1, .z_loss = 1e-2});
  }
};

TEST(Tape, PutsTheGradientOfLogitsWhereTheyWere) {
  LossOfLogits loss_of;
  Floats wanted;
  {
    Tape tape;
    const Tensor logits = scale(loss_of.x, 2);
    const Floats before = logits.to_vector<float>();
    wanted = tape.backward(loss_of(logits))[loss_of.x].to_vector<float>();
    EXPECT_NE(loss_of.lands, logits.raw()) << "somebody can look at them";
    EXPECT_EQ(logits.to_vector<float>(), before);
  }
  Tape tape;
  Tensor logits = scale(loss_of.x, 2);
  const void* const place = logits.raw();
  const Tensor loss = loss_of(logits);
  logits = {};
  EXPECT_EQ(tape.backward(loss)[loss_of.x].to_vector<float>(), wanted);
  EXPECT_EQ(loss_of.lands, place);
}

TEST(Tape, LeavesLogitsOfSomebodyElseAlone) {
  LossOfLogits loss_of;
  Floats memory = loss_of.x.to_vector<float>();
  const Floats before = memory;
  Tape tape;
  Tensor logits = Tensor::wrap(memory.data(), loss_of.x.shape(), DType::f32);
  const Tensor loss = loss_of(logits);
  logits = {};
  tape.backward(loss);
  EXPECT_EQ(memory, before);
  EXPECT_NE(loss_of.lands, memory.data());
}

TEST(Tape, SaysWhichOperatorReturnedAWrongGradient) {
  const Tensor x = vector_of({1, 2});
  Tape tape;
  const Tensor y = Tape::record("odd", {x}, Tensor::zeros({2}),
                                [](const Tensor&) { return std::vector{Tensor::zeros({3})}; });
  EXPECT_ERROR("odd: the gradient of input 0 is [3], the input is [2]", tape.backward(sum(y)));
}

// Gradients in f32 may reach a 16-bit tensor that an operator made: a weight made of others.
TEST(Tape, CarriesF32GradientsThroughOperatorsOn16Bits) {
  Generator random(3);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor base = random.normal({4, 6}, 0, 1, dtype), x = random.normal({3, 6}, 0, 1, dtype);
    const Tensor more = random.normal({4, 6}, 0, 1, dtype);
    Tape tape;
    const Tensor parts[] = {gated(base, more, Activation::silu),
                            activate(base, Activation::gelu),
                            softmax(base),
                            layer_norm(base, {}, {}, 1e-5),
                            dropout(base, 0.5, 1),
                            mul(base, more),
                            transpose(reshape(base, {6, 4}), 0, 1)};
    Tensor total;
    for (const Tensor& weight : parts) {
      const Tensor y = sum(linear(x, weight));
      total = total.defined() ? add(total, y) : y;
    }
    const Gradients grads = tape.backward(total);
    EXPECT_TRUE(grads[base].defined());
    EXPECT_TRUE(grads[more].defined());
  }
}

TEST(Gradients, OfWeightsTablesAndBiasesAreF32) {
  Generator random(4);
  const DType dtype = DType::bf16;
  const Tensor x = random.normal({3, 6}, 0, 1, dtype), weight = random.normal({4, 6}, 0, 1, dtype);
  const Tensor bias = random.normal({4}, 0, 1, dtype), gain = random.normal({6}, 0, 1, dtype);
  const Tensor shift = random.normal({6}, 0, 1, dtype), table = random.normal({9, 6}, 0, 1, dtype);
  Tape tape;
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{1, 2, 1}, {3});
  const Tensor h = add_layer_norm(x, embedding(ids, table), gain, shift, 1e-5).normed;
  const Gradients grads = tape.backward(sum(linear(h, weight, bias)));
  for (const Tensor& p : {weight, bias, gain, shift, table}) {
    EXPECT_EQ(grads[p].dtype(), DType::f32);
  }
  EXPECT_EQ(grads[x].dtype(), dtype);
}

// A long sum of 16-bit gradients is rounded at its end, not on the way.
TEST(Gradients, OfBiasesDoNotRoundOnTheWay) {
  const std::int64_t rows = 3001;
  const Tensor x = Tensor::full({rows, 1}, 1, {DType::bf16});
  const Tensor weight = Tensor::full({1, 1}, 1, {DType::bf16});
  const Tensor bias = Tensor::zeros({1}, {DType::bf16}), wide = Tensor::zeros({1});
  Tape tape;
  const Tensor y = add(linear(x, weight, bias), wide);
  const Gradients grads = tape.backward(y, Tensor::full({rows, 1}, 1, {DType::bf16}));
  EXPECT_EQ(grads[bias].to_vector<float>(), Floats{3001});
  EXPECT_EQ(grads[wide].dtype(), DType::f32);
  EXPECT_EQ(grads[wide].to_vector<float>(), Floats{3001});
}

}  // namespace
}  // namespace qkv
