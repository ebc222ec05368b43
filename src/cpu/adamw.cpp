// A step of AdamW, one source for every SIMD target.
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/adamw.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void adamw_span(const AdamWProblem& p, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const float* gradient = p.gradient.data<float>() + begin;
  float* m = p.m.data<float>() + begin;
  float* v = p.v.data<float>() + begin;
  float* master = p.master.defined() ? p.master.data<float>() + begin : nullptr;
  T* parameter = p.parameter.data<T>() + begin;
  const VecF32 factor = hn::Set(d, p.gradient_scale), eps = hn::Set(d, p.eps);
  const VecF32 beta1 = hn::Set(d, p.beta1), rest1 = hn::Set(d, 1 - p.beta1);
  const VecF32 beta2 = hn::Set(d, p.beta2), rest2 = hn::Set(d, 1 - p.beta2);
  const VecF32 keep = hn::Set(d, 1 - p.lr * p.weight_decay);
  const VecF32 lr = hn::Set(d, p.lr / p.correction1);
  const VecF32 unbias = hn::Set(d, 1 / p.correction2);
  for_lanes(end - begin, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 g = hn::Mul(load_lanes(gradient + i, n), factor);
    const VecF32 mean = hn::MulAdd(beta1, load_lanes(m + i, n), hn::Mul(rest1, g));
    const VecF32 square = hn::MulAdd(beta2, load_lanes(v + i, n), hn::Mul(hn::Mul(rest2, g), g));
    store_lanes(mean, m + i, n);
    store_lanes(square, v + i, n);
    VecF32 w = master != nullptr ? load_lanes(master + i, n) : load_lanes(parameter + i, n);
    const VecF32 size = hn::Add(hn::Sqrt(hn::Mul(square, unbias)), eps);
    w = hn::Sub(hn::Mul(w, keep), hn::Div(hn::Mul(lr, mean), size));
    if (master != nullptr) store_lanes(w, master + i, n);
    store_lanes(w, parameter + i, n);
  });
}

void adamw_kernel(const AdamWProblem& p) {
  dispatch_float(p.parameter.dtype(), [&]<class T>() {
    for_each_span(p.parameter.numel(),
                  [&](std::int64_t begin, std::int64_t end) { adamw_span<T>(p, begin, end); });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(adamw_kernel);

void adamw(const AdamWProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(adamw_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
