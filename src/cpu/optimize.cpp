// A step of an optimiser, one source for every SIMD target.
#include <cmath>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optimize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// What one parameter's elements have in common.
struct Update {
  OptimizerRule rule;
  float factor;  // of gradients
  float beta1, beta2, rest1, rest2;
  float keep, lr;     // of the parameter, of the step; adamw: lr is already unbiased
  float unbias, eps;  // adamw
  float share;        // of the parameter in its running mean
};

double squares_of(const float* x, std::int64_t count) {
  Sum sum;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 g = load_lanes(x + i, n);
    sum.add(hn::Mul(g, g));
  });
  return sum.total();
}

double squares_kernel(const Tensor& gradient) {
  const std::int64_t count = gradient.numel();
  const float* x = gradient.data<float>();
  const std::int64_t pieces = (count + kTaskElements - 1) / kTaskElements;
  const Scratch<double> parts(pieces);
  std::fill_n(parts.get(), pieces, 0.0);
  for_each_span(count, [&](std::int64_t begin, std::int64_t end) {
    parts[begin / kTaskElements] = squares_of(x + begin, end - begin);
  });
  double total = 0;
  for (std::int64_t i = 0; i < pieces; ++i) total += parts[i];
  return total;
}

// The step u of OptimizerProblem for n elements from i on; m and v move on.
HWY_INLINE VecF32 direction(const Update& u, VecF32 g, float* m, float* v, std::int64_t n) {
  const F32 d;
  const VecF32 beta1 = hn::Set(d, u.beta1), beta2 = hn::Set(d, u.beta2);
  const VecF32 rest1 = hn::Set(d, u.rest1), rest2 = hn::Set(d, u.rest2);
  if (u.rule == OptimizerRule::adamw) {
    const VecF32 mean = hn::MulAdd(beta1, load_lanes(m, n), hn::Mul(rest1, g));
    const VecF32 square = hn::MulAdd(beta2, load_lanes(v, n), hn::Mul(hn::Mul(rest2, g), g));
    store_lanes(mean, m, n);
    store_lanes(square, v, n);
    const VecF32 size = hn::Sqrt(hn::Mul(square, hn::Set(d, u.unbias)));
    return hn::Div(mean, hn::Add(size, hn::Set(d, u.eps)));
  }
  if (m == nullptr) return g;
  const VecF32 before = load_lanes(m, n);
  if (u.rule == OptimizerRule::sgd) {
    const VecF32 mean = hn::MulAdd(beta1, before, g);
    store_lanes(mean, m, n);
    return mean;
  }
  store_lanes(hn::MulAdd(beta2, before, hn::Mul(rest2, g)), m, n);
  const VecF32 mean = hn::MulAdd(beta1, before, hn::Mul(rest1, g));
  const VecF32 one = hn::CopySign(hn::Set(d, 1), mean);
  return hn::IfThenZeroElse(hn::Eq(mean, hn::Zero(d)), one);
}

template <class T>
void update_span(const OptimizerItem& item, const Update& u, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const auto from = [&](const Tensor& x) {
    return x.defined() ? x.data<float>() + begin : nullptr;
  };
  const float* gradient = from(item.gradient);
  float *m = from(item.m), *v = from(item.v), *master = from(item.master), *ema = from(item.ema);
  T* parameter = item.parameter.data<T>() + begin;
  const VecF32 factor = hn::Set(d, u.factor), keep = hn::Set(d, u.keep), lr = hn::Set(d, u.lr);
  for_lanes(end - begin, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 g = hn::Mul(load_lanes(gradient + i, n), factor);
    const VecF32 step =
        direction(u, g, m != nullptr ? m + i : nullptr, v != nullptr ? v + i : nullptr, n);
    VecF32 w = master != nullptr ? load_lanes(master + i, n) : load_lanes(parameter + i, n);
    w = hn::Sub(hn::Mul(w, keep), hn::Mul(lr, step));
    if (master != nullptr) store_lanes(w, master + i, n);
    store_lanes(w, parameter + i, n);
    if (ema == nullptr) return;
    const VecF32 mean = load_lanes(ema + i, n);
    store_lanes(hn::MulAdd(hn::Set(d, u.share), hn::Sub(w, mean), mean), ema + i, n);
  });
}

void update_kernel(const OptimizerItem& item, const Update& u) {
  dispatch_float(item.parameter.dtype(), [&]<class T>() {
    for_each_span(item.parameter.numel(), [&](std::int64_t begin, std::int64_t end) {
      update_span<T>(item, u, begin, end);
    });
  });
}

void optimize_kernel(const OptimizerProblem& p) {
  double squares = 0;
  for (const OptimizerItem& item : p.items) squares += squares_kernel(item.gradient);
  const double norm = std::sqrt(squares);
  *p.norm.data<float>() = static_cast<float>(norm);
  if (!std::isfinite(*p.norm.data<float>())) return;
  const bool clips = p.clip_norm > 0 && norm > p.clip_norm;
  Update u{};
  u.rule = p.rule;
  u.factor = clips ? static_cast<float>(p.clip_norm / (norm + 1e-6)) : 1;  // as torch does
  u.beta1 = static_cast<float>(p.beta1);
  u.beta2 = static_cast<float>(p.beta2);
  u.rest1 = static_cast<float>(1 - p.beta1);
  u.rest2 = static_cast<float>(1 - p.beta2);
  u.eps = static_cast<float>(p.eps);
  u.share = static_cast<float>(1 - p.ema);
  for (const OptimizerItem& item : p.items) {
    const auto t = static_cast<double>(++*item.steps.data<std::int64_t>());
    const bool unbiases = p.rule == OptimizerRule::adamw;
    u.keep = static_cast<float>(1 - p.lr * item.weight_decay);
    u.lr = static_cast<float>(unbiases ? p.lr / (1 - std::pow(p.beta1, t)) : p.lr);
    u.unbias = static_cast<float>(1 / (1 - std::pow(p.beta2, t)));
    update_kernel(item, u);
  }
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(optimize_kernel);

void optimize(const OptimizerProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(optimize_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
