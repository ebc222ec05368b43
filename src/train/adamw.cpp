#include <cmath>
#include <unordered_set>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/ops.h"
#include "qkv/optim.h"

namespace qkv {
namespace {

AdamWState state_for(const Tensor& parameter) {
  const TensorOptions f32{DType::f32, parameter.device()};
  AdamWState state{
      Tensor::zeros(parameter.shape(), f32), Tensor::zeros(parameter.shape(), f32), {}, 0};
  if (parameter.dtype() != DType::f32) {
    state.master = Tensor::empty(parameter.shape(), f32);
    backend(parameter.device()).copy(parameter, state.master);
  }
  return state;
}

void check_options(const AdamWOptions& o) {
  check(o.lr >= 0, "AdamW: lr must not be negative, got {}", o.lr);
  check(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1,
        "AdamW: beta1 and beta2 must be in [0, 1), got {} and {}", o.beta1, o.beta2);
  check(o.eps >= 0 && o.weight_decay >= 0 && o.clip_norm >= 0,
        "AdamW: eps, weight_decay and clip_norm must not be negative, got {}, {} and {}", o.eps,
        o.weight_decay, o.clip_norm);
}

// The sum of squares; each tensor's in f32, all of them in double and in order.
double squares_of(const std::vector<Tensor>& gradients) {
  double total = 0;
  for (const Tensor& g : gradients) {
    if (g.defined()) total += sum(mul(g, g)).to_vector<float>()[0];
  }
  return total;
}

}  // namespace

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& given,
             std::vector<Tensor> undecayed)
    : options(given), parameters_(std::move(parameters)), decayed_(parameters_.size()) {
  parameters_.insert(parameters_.end(), undecayed.begin(), undecayed.end());
  check_options(options);
  std::unordered_set<std::uint64_t> seen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    check(p.defined(), "AdamW: parameter {} is undefined", i);
    check(is_floating(p.dtype()) && p.is_contiguous(),
          "AdamW: parameter {} must be floating point and contiguous, got {} {}", i, p.dtype(),
          p.shape());
    check(!p.is_read_only(),
          "AdamW: parameter {} {} is mapped from a file and cannot be changed; load the model with "
          "{{.writable = true}}",
          i, p.shape());
    check(seen.insert(p.id()).second, "AdamW: parameter {} {} is given twice", i, p.shape());
    state_.push_back(state_for(p));
  }
}

void AdamW::set_state(std::vector<AdamWState> state) {
  check(state.size() == state_.size(), "AdamW: {} states for {} parameters", state.size(),
        state_.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    const Tensor& p = parameters_[i];
    const auto fits = [&](const Tensor& x) {
      return x.defined() && x.dtype() == DType::f32 && x.shape() == p.shape() && x.is_contiguous();
    };
    check(fits(state[i].m) && fits(state[i].v) && state[i].steps >= 0 &&
              (p.dtype() == DType::f32 || fits(state[i].master)),
          "AdamW: state {} must be contiguous f32 {} to fit its parameter", i, p.shape());
  }
  state_ = std::move(state);
}

double AdamW::step(const Gradients& gradients) {
  check_options(options);
  const TapePause pause;
  std::vector<Tensor> found(parameters_.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Tensor g = gradients[parameters_[i]];
    if (!g.defined()) continue;
    check(g.shape() == parameters_[i].shape(), "AdamW: gradient {} is {}, the parameter is {}", i,
          g.shape(), parameters_[i].shape());
    found[i] = contiguous(to(g, DType::f32));
  }
  const double norm = std::sqrt(squares_of(found));
  const double scale = options.clip_norm > 0 && norm > options.clip_norm
                           ? options.clip_norm / (norm + 1e-6)  // as torch's clip_grad_norm_
                           : 1;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) continue;
    const auto count = static_cast<double>(++state_[i].steps);
    AdamWProblem problem;
    problem.parameter = parameters_[i];
    problem.gradient = found[i];
    problem.m = state_[i].m;
    problem.v = state_[i].v;
    problem.master = state_[i].master;
    problem.lr = static_cast<float>(options.lr);
    problem.beta1 = static_cast<float>(options.beta1);
    problem.beta2 = static_cast<float>(options.beta2);
    problem.eps = static_cast<float>(options.eps);
    problem.weight_decay = i < decayed_ ? static_cast<float>(options.weight_decay) : 0;
    problem.correction1 = static_cast<float>(1 - std::pow(options.beta1, count));
    problem.correction2 = static_cast<float>(1 - std::pow(options.beta2, count));
    problem.gradient_scale = static_cast<float>(scale);
    backend(parameters_[i].device()).adamw(problem);
  }
  return norm;
}

}  // namespace qkv
