#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/ops.h"
#include "qkv/optim.h"

namespace qkv {
namespace {

constexpr std::array<std::pair<const char*, OptimizerRule>, 3> kRules{
    {{"adamw", OptimizerRule::adamw}, {"lion", OptimizerRule::lion}, {"sgd", OptimizerRule::sgd}}};

bool keeps_mean(const OptimizerOptions& o) { return o.rule != OptimizerRule::sgd || o.beta1 > 0; }
bool keeps_squares(const OptimizerOptions& o) { return o.rule == OptimizerRule::adamw; }

Tensor f32_of(const Tensor& x) {
  Tensor copy = Tensor::empty(x.shape(), {DType::f32, x.device()});
  backend(x.device()).copy(x, copy);
  return copy;
}

// What the options ask for and the state does not have yet.
void complete(OptimizerState& state, const Tensor& parameter, const OptimizerOptions& o) {
  const TensorOptions f32{DType::f32, parameter.device()};
  if (!state.m.defined() && keeps_mean(o)) state.m = Tensor::zeros(parameter.shape(), f32);
  if (!state.v.defined() && keeps_squares(o)) state.v = Tensor::zeros(parameter.shape(), f32);
  if (!state.master.defined() && parameter.dtype() != DType::f32) state.master = f32_of(parameter);
  if (!state.ema.defined() && o.ema > 0) {
    state.ema = f32_of(state.master.defined() ? state.master : parameter);
  }
  if (!state.steps.defined()) {
    state.steps = Tensor::zeros({}, {DType::i64, parameter.device()});
  }
}

void check_options(const OptimizerOptions& o) {
  check(o.lr >= 0, "Optimizer: lr must not be negative, got {}", o.lr);
  check(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1,
        "Optimizer: beta1 and beta2 must be in [0, 1), got {} and {}", o.beta1, o.beta2);
  check(o.eps >= 0 && o.weight_decay >= 0 && o.clip_norm >= 0,
        "Optimizer: eps, weight_decay and clip_norm must not be negative, got {}, {} and {}", o.eps,
        o.weight_decay, o.clip_norm);
  check(o.ema >= 0 && o.ema < 1, "Optimizer: ema must be in [0, 1), got {}", o.ema);
}

void check_parameter(const Tensor& p, std::size_t i, Device device) {
  check(p.defined(), "Optimizer: parameter {} is undefined", i);
  check(is_floating(p.dtype()) && p.is_contiguous(),
        "Optimizer: parameter {} must be floating point and contiguous, got {} {}", i, p.dtype(),
        p.shape());
  check(!p.is_read_only(),
        "Optimizer: parameter {} {} is mapped from a file and cannot be changed; load the model "
        "with {{.writable = true}}",
        i, p.shape());
  check(p.device() == device, "Optimizer: parameter {} is on {}, those before it on {}", i,
        p.device(), device);
}

}  // namespace

std::string to_string(OptimizerRule rule) {
  for (const auto& [name, value] : kRules) {
    if (value == rule) return name;
  }
  return "?";
}

OptimizerRule optimizer_rule_from_string(const std::string& name) {
  for (const auto& [known, value] : kRules) {
    if (name == known) return value;
  }
  fail("optimizer '{}' is not known; there are adamw, lion, sgd", name);
}

Optimizer::Optimizer(std::vector<Tensor> parameters, const OptimizerOptions& given,
                     std::vector<Tensor> undecayed)
    : options(given), parameters_(std::move(parameters)), decayed_(parameters_.size()) {
  parameters_.insert(parameters_.end(), undecayed.begin(), undecayed.end());
  check_options(options);
  std::unordered_set<std::uint64_t> seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& first = parameters_.front();
    check_parameter(parameters_[i], i, first.defined() ? first.device() : kCpu);
    check(seen.insert(parameters_[i].id()).second, "Optimizer: parameter {} {} is given twice", i,
          parameters_[i].shape());
    complete(state_.emplace_back(), parameters_[i], options);
  }
}

void Optimizer::set_state(std::vector<OptimizerState> state) {
  check(state.size() == state_.size(), "Optimizer: {} states for {} parameters", state.size(),
        state_.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    const Tensor& p = parameters_[i];
    const OptimizerState& s = state[i];
    const auto fits = [&](const Tensor& x, DType dtype, const Shape& shape, bool needed) {
      if (!x.defined()) return !needed;
      return x.dtype() == dtype && x.shape() == shape && x.is_contiguous() &&
             x.device() == p.device() && !x.is_read_only();
    };
    check(fits(s.m, DType::f32, p.shape(), keeps_mean(options)) &&
              fits(s.v, DType::f32, p.shape(), keeps_squares(options)) &&
              fits(s.master, DType::f32, p.shape(), p.dtype() != DType::f32) &&
              fits(s.ema, DType::f32, p.shape(), false) && fits(s.steps, DType::i64, {}, true),
          "Optimizer: state {} must be contiguous f32 {} on {}, writable, with i64 [] steps, to "
          "fit its parameter",
          i, p.shape(), p.device());
  }
  state_ = std::move(state);
}

Tensor Optimizer::step(const Gradients& gradients) {
  check_options(options);
  const TapePause pause;
  OptimizerProblem problem;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    const Tensor g = gradients[p];
    if (!g.defined()) continue;
    check(g.shape() == p.shape(), "Optimizer: gradient {} is {}, the parameter is {}", i, g.shape(),
          p.shape());
    OptimizerState& s = state_[i];
    complete(s, p, options);
    problem.items.push_back({.parameter = p,
                             .gradient = contiguous(to(g, DType::f32)),
                             .m = keeps_mean(options) ? s.m : Tensor(),
                             .v = keeps_squares(options) ? s.v : Tensor(),
                             .master = s.master,
                             .ema = options.ema > 0 ? s.ema : Tensor(),
                             .steps = s.steps,
                             .weight_decay = i < decayed_ ? options.weight_decay : 0});
  }
  const Device device = parameters_.empty() ? kCpu : parameters_.front().device();
  problem.rule = options.rule;
  problem.lr = options.lr;
  problem.beta1 = options.beta1;
  problem.beta2 = options.beta2;
  problem.eps = options.eps;
  problem.clip_norm = options.clip_norm;
  problem.ema = options.ema;
  problem.norm = Tensor::empty({}, {DType::f32, device});
  norm_ = backend(device).optimize(problem);
  return problem.norm;
}

float Optimizer::norm() const {
  check(norm_ != nullptr, "Optimizer: there is no norm before the first step");
  return *norm_->wait().data<float>();
}

}  // namespace qkv
