// Ten steps of a small model under each rule against the whole run in float64.
#include <cmath>
#include <vector>

#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/optim.h"
#include "qkv/random.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv {
namespace {

using Doubles = std::vector<double>;
constexpr std::int64_t kRows = 6, kIn = 5, kInner = 7, kClasses = 4;
constexpr double kEps = 1e-5;
const std::vector<std::int64_t> kTargets{0, 3, 1, 2, 2, 0};

// Weight, bias, gain, shift, weight, bias.
const std::vector<Shape> kShapes{{kInner, kIn}, {kInner},           {kInner},
                                 {kInner},      {kClasses, kInner}, {kClasses}};

std::vector<Tensor> draw_parameters() {
  Generator random(11);
  std::vector<Tensor> parameters;
  for (const Shape& shape : kShapes) parameters.push_back(random.normal(shape, 0.3f, 0.5f));
  return parameters;
}

Tensor loss_of(const std::vector<Tensor>& p, const Tensor& x) {
  const Tensor h = layer_norm(linear(x, p[0], p[1]), p[2], p[3], kEps);
  return cross_entropy(linear(h, p[4], p[5]), Tensor::from(kTargets, {kRows}));
}

Doubles linear_of(const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const std::size_t outputs = bias.size(), inputs = weight.size() / outputs;
  Doubles y(x.size() / inputs * outputs);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = bias[i % outputs];
    for (std::size_t k = 0; k < inputs; ++k) {
      y[i] += x[i / outputs * inputs + k] * weight[i % outputs * inputs + k];
    }
  }
  return y;
}

double loss_of(const std::vector<Doubles>& p, const Doubles& x) {
  Doubles h = linear_of(x, p[0], p[1]);
  for (std::size_t r = 0; r < h.size(); r += kInner) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < kInner; ++i) mean += h[r + i] / kInner;
    for (std::size_t i = 0; i < kInner; ++i) variance += std::pow(h[r + i] - mean, 2) / kInner;
    for (std::size_t i = 0; i < kInner; ++i) {
      h[r + i] = (h[r + i] - mean) / std::sqrt(variance + kEps) * p[2][i] + p[3][i];
    }
  }
  const Doubles logits = linear_of(h, p[4], p[5]);
  double loss = 0;
  for (std::size_t r = 0; r < kRows; ++r) {
    double total = 0;
    for (std::size_t i = 0; i < kClasses; ++i) total += std::exp(logits[r * kClasses + i]);
    loss += std::log(total) - logits[r * kClasses + static_cast<std::size_t>(kTargets[r])];
  }
  return loss / kRows;
}

// Gradients by central differences: the reference has no backward that could share a mistake.
std::vector<Doubles> gradients_of(std::vector<Doubles> p, const Doubles& x) {
  std::vector<Doubles> gradients;
  for (Doubles& values : p) {
    Doubles gradient;
    for (double& value : values) {
      constexpr double kMove = 1e-5;
      const double before = value;
      value = before + kMove;
      const double above = loss_of(p, x);
      value = before - kMove;
      gradient.push_back((above - loss_of(p, x)) / (2 * kMove));
      value = before;
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// Each rule as its paper has it, after torch.nn.utils.clip_grad_norm_.
class Reference {
 public:
  Reference(const std::vector<Doubles>& p, const OptimizerOptions& o, std::size_t decayed)
      : ema(p), options_(o), decayed_(decayed), m_(p), v_(p) {
    for (auto* state : {&m_, &v_}) {
      for (Doubles& values : *state) std::fill(values.begin(), values.end(), 0.0);
    }
  }
  double step(std::vector<Doubles>& p, const std::vector<Doubles>& gradients) {
    double norm = 0;
    for (const Doubles& g : gradients) {
      for (const double value : g) norm += value * value;
    }
    norm = std::sqrt(norm);
    const double factor = options_.clip_norm > 0 && norm > options_.clip_norm
                              ? options_.clip_norm / (norm + 1e-6)
                              : 1;
    ++steps_;
    const OptimizerOptions& o = options_;
    for (std::size_t k = 0; k < p.size(); ++k) {
      for (std::size_t i = 0; i < p[k].size(); ++i) {
        const double u = direction(m_[k][i], v_[k][i], gradients[k][i] * factor);
        if (k < decayed_) p[k][i] -= o.lr * o.weight_decay * p[k][i];
        p[k][i] -= o.lr * u;
        ema[k][i] = o.ema * ema[k][i] + (1 - o.ema) * p[k][i];
      }
    }
    return norm;
  }

  std::vector<Doubles> ema;

 private:
  double direction(double& m, double& v, double g) const {
    const OptimizerOptions& o = options_;
    if (o.rule == OptimizerRule::lion) {
      const double mean = o.beta1 * m + (1 - o.beta1) * g;
      m = o.beta2 * m + (1 - o.beta2) * g;
      return mean > 0 ? 1 : mean < 0 ? -1 : 0;
    }
    if (o.rule == OptimizerRule::sgd) return m = o.beta1 * m + g;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    return m / (1 - std::pow(o.beta1, steps_)) /
           (std::sqrt(v / (1 - std::pow(o.beta2, steps_))) + o.eps);
  }

  OptimizerOptions options_;
  std::size_t decayed_;
  std::vector<Doubles> m_, v_;
  int steps_ = 0;
};

void expect_near(const Tensor& got, const Doubles& expected, const std::string& what) {
  const Doubles values = test::values_of(got);
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], 2e-5) << what << " at " << i;
  }
}

void compare_runs(const OptimizerOptions& options, std::size_t decayed) {
  const Device device = test::test_device();
  std::vector<Tensor> parameters;
  for (const Tensor& p : draw_parameters()) parameters.push_back(to(p, device));
  const Tensor x = to(Generator(12).normal({kRows, kIn}), device);
  std::vector<Doubles> expected;
  for (const Tensor& p : parameters) expected.push_back(test::values_of(p));
  Reference reference(expected, options, decayed);
  const auto split = parameters.begin() + static_cast<std::ptrdiff_t>(decayed);
  Optimizer optimizer({parameters.begin(), split}, options, {split, parameters.end()});
  for (int step = 0; step < 10; ++step) {
    Tape tape;
    const Tensor loss = loss_of(parameters, x);
    ASSERT_NEAR(loss.to_vector<float>()[0], loss_of(expected, test::values_of(x)), 2e-5) << step;
    const Tensor norm = optimizer.step(tape.backward(loss));
    const double want = reference.step(expected, gradients_of(expected, test::values_of(x)));
    ASSERT_NEAR(norm.to_vector<float>()[0], want, 1e-4) << step;
    ASSERT_EQ(optimizer.norm(), norm.to_vector<float>()[0]) << step;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const std::string what = "step " + std::to_string(step) + ", " + std::to_string(k);
      expect_near(parameters[k], expected[k], what);
      if (options.ema > 0) expect_near(optimizer.state()[k].ema, reference.ema[k], "ema, " + what);
    }
  }
  EXPECT_EQ(optimizer.state()[0].steps.to_vector<std::int64_t>()[0], 10);
}

TEST(Optimizer, TakesTheStepsOfFloat64OnEveryTarget) {
  test::for_each_target([] {
    compare_runs({.lr = 0.01, .weight_decay = 0.1}, kShapes.size());
    compare_runs({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0, .clip_norm = 0.1},
                 kShapes.size());
    compare_runs({.lr = 0.02, .weight_decay = 0.3, .ema = 0.7}, 1);
    compare_runs({.rule = OptimizerRule::lion, .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.2}, 3);
    compare_runs({.rule = OptimizerRule::lion, .lr = 1e-3, .clip_norm = 0.1, .ema = 0.9}, 6);
    compare_runs({.rule = OptimizerRule::sgd, .lr = 0.05, .weight_decay = 0.1, .clip_norm = 0.2},
                 2);
    compare_runs({.rule = OptimizerRule::sgd, .lr = 0.1, .beta1 = 0, .ema = 0.5}, 6);
  });
}

void check_not_finite() {
  for (const OptimizerRule rule : {OptimizerRule::adamw, OptimizerRule::lion, OptimizerRule::sgd}) {
    const Tensor p = to(Generator(5).normal({70000}), test::test_device());
    const Tensor q = to(to(Generator(6).normal({5, 3}), DType::bf16), test::test_device());
    Optimizer optimizer({p, q}, {.rule = rule, .lr = 0.1, .clip_norm = 1, .ema = 0.5});
    const auto bytes = [&] {
      std::vector<std::vector<std::uint8_t>> all{test::bytes_of(p), test::bytes_of(q)};
      for (const OptimizerState& s : optimizer.state()) {
        for (const Tensor& x : {s.m, s.v, s.master, s.ema, s.steps}) {
          if (x.defined()) all.push_back(test::bytes_of(x));
        }
      }
      return all;
    };
    Gradients good, bad;
    good.set(p, to(Generator(7).normal({70000}), p.device()));
    good.set(q, to(Generator(8).normal({5, 3}), p.device()));
    EXPECT_GT(optimizer.step(good).to_vector<float>()[0], 1);
    for (const float broken : {NAN, INFINITY}) {
      std::vector<float> values(70000, 1.0f);
      values[69999] = broken;
      bad.set(p, to(Tensor::from(values, {70000}), p.device()));
      bad.set(q, good[q]);
      const auto before = bytes();
      EXPECT_FALSE(std::isfinite(optimizer.step(bad).to_vector<float>()[0]));
      EXPECT_FALSE(std::isfinite(optimizer.norm()));
      EXPECT_EQ(bytes(), before) << to_string(rule);
    }
    const auto before = bytes();
    optimizer.step(good);
    EXPECT_NE(bytes(), before);
  }
}

TEST(Optimizer, ChangesNothingWhenAGradientIsNotFinite) {
  test::for_each_target([] { check_not_finite(); });
}

TEST(Optimizer, KnowsTheRulesByName) {
  for (const char* name : {"adamw", "lion", "sgd"}) {
    EXPECT_EQ(to_string(optimizer_rule_from_string(name)), name);
  }
  EXPECT_ERROR("optimizer 'adam' is not known; there are adamw, lion, sgd",
               optimizer_rule_from_string("adam"));
}

TEST(Gradients, AccumulateOverPasses) {
  const Tensor p = Tensor::full({3}, 2), q = Tensor::full({2}, 1, {DType::bf16});
  const auto pass = [&](double factor, bool with_q) {
    Tape tape;
    const Tensor loss = sum(scale(mul(p, p), factor));
    return tape.backward(with_q ? add(loss, to(sum(scale(q, factor)), DType::f32)) : loss);
  };
  Gradients all = pass(1, false);
  const Tensor first = all[p];
  all.accumulate(pass(2, true));
  all.accumulate(pass(3, true));
  EXPECT_EQ(test::values_of(all[p]), (Doubles{24, 24, 24}));
  EXPECT_EQ(test::values_of(all[q]), (Doubles{5, 5}));
  EXPECT_EQ(all[q].dtype(), DType::f32);
  EXPECT_EQ(test::values_of(first), (Doubles{4, 4, 4}));  // not ours to change
  Gradients wrong;
  wrong.set(p, Tensor::zeros({4}));
  EXPECT_ERROR("accumulate: gradients of one tensor are [3] and [4]", all.accumulate(wrong));
}

TEST(Optimizer, KeepsWhatA16BitParameterCannotHold) {
  // Each step is a tenth of what bf16 can tell from 1.
  const Tensor p = Tensor::full({3}, 1, {DType::bf16});
  AdamW adam({p}, {.lr = 0.0005, .weight_decay = 0});
  for (int step = 0; step < 40; ++step) {
    Tape tape;
    adam.step(tape.backward(sum(p)));
  }
  EXPECT_NEAR(test::values_of(p)[0], 0.98, 0.004);
  EXPECT_NEAR(test::values_of(adam.state()[0].master)[0], 0.98, 1e-4);
}

TEST(Optimizer, LeavesAParameterWithoutGradientAlone) {
  const Tensor used = Tensor::full({2}, 1), unused = Tensor::full({2}, 1);
  AdamW adam({used, unused}, {.lr = 0.1, .weight_decay = 0.5});
  Tape tape;
  const Tensor norm = adam.step(tape.backward(sum(scale(used, 3))));
  EXPECT_NEAR(norm.to_vector<float>()[0], 3 * std::sqrt(2.0), 1e-5);
  EXPECT_EQ(test::values_of(unused), (Doubles{1, 1}));
  EXPECT_NEAR(test::values_of(used)[0], 0.85, 1e-5);
  EXPECT_EQ(adam.state()[1].steps.to_vector<std::int64_t>()[0], 0);
}

TEST(Optimizer, TakesUpARunAgain) {
  const auto run = [](AdamW& adam, const Tensor& p, int steps) {
    for (int step = 0; step < steps; ++step) {
      Tape tape;
      adam.step(tape.backward(sum(mul(p, p))));
    }
  };
  const Tensor whole = Tensor::full({3}, 1), parts = Tensor::full({3}, 1);
  AdamW one({whole}), first({parts}), second({parts});
  run(one, whole, 6);
  run(first, parts, 3);
  second.set_state(first.state());
  run(second, parts, 3);
  EXPECT_EQ(test::bytes_of(parts), test::bytes_of(whole));
}

TEST(Optimizer, HasANormFromItsFirstStepOn) {
  const Tensor p = to(Tensor::full({4}, 3), test::test_device());
  Optimizer sgd({p}, {.rule = OptimizerRule::sgd});
  EXPECT_ERROR("Optimizer: there is no norm before the first step", sgd.norm());
  sgd.step({});
  EXPECT_EQ(sgd.norm(), 0);
  Gradients gradients;
  gradients.set(p, to(Tensor::full({4}, 2), test::test_device()));
  sgd.step(gradients);
  EXPECT_EQ(sgd.norm(), 4);
}

TEST(Optimizer, NamesWhatItCannotTake) {
  const Tensor p = Tensor::zeros({2, 3});
  EXPECT_ERROR("Optimizer: parameter 1 is undefined", AdamW({p, Tensor()}));
  EXPECT_ERROR("Optimizer: parameter 1 [2, 3] is given twice", AdamW({p}, {}, {p}));
  EXPECT_ERROR("Optimizer: parameter 0 must be floating point and contiguous, got f32 [3, 2]",
               AdamW({transpose(p, 0, 1)}));
  EXPECT_ERROR("Optimizer: lr must not be negative, got -1", AdamW({p}, {.lr = -1}));
  EXPECT_ERROR("Optimizer: beta1 and beta2 must be in [0, 1), got 1 and 0.999",
               AdamW({p}, {.beta1 = 1}));
  AdamW adam({p});
  EXPECT_ERROR("Optimizer: 0 states for 1 parameters", adam.set_state({}));
  EXPECT_ERROR("Optimizer: state 0 must be contiguous f32 [2, 3]", adam.set_state({{}}));
  EXPECT_ERROR("Optimizer: ema must be in [0, 1), got 1", AdamW({p}, {.ema = 1}));
  Gradients wrong;
  wrong.set(p, Tensor::zeros({3}));
  EXPECT_ERROR("Optimizer: gradient 0 is [3], the parameter is [2, 3]", adam.step(wrong));
}

}  // namespace
}  // namespace qkv
