// -log softmax(logits)[target], one source for every SIMD target; backward makes the probabilities
// again from lse.
#include <cmath>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/cross_entropy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/log_sum-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// The loss of row r; sets its lse.
template <class T>
double row_loss(const CrossEntropyProblem& p, const T* x, std::int64_t classes, std::int64_t r) {
  const double lse = log_sum_of(x, classes);
  p.lse.data<float>()[r] = static_cast<float>(lse);
  const std::int64_t target = p.targets.data<std::int64_t>()[r];
  if (target == p.ignore_index) return 0;
  const double hit = lse - static_cast<float>(x[target]), drift = p.z_loss * lse * lse;
  if (p.label_smoothing == 0) return hit + drift;  // whatever other logits are -inf
  const double even = lse - sum_of(x, classes) / static_cast<double>(classes);
  return (1 - double{p.label_smoothing}) * hit + p.label_smoothing * even + drift;
}

void cross_entropy_kernel(const CrossEntropyProblem& p) {
  const std::int64_t classes = p.logits.size(-1), rows = p.logits.numel() / classes;
  const Scratch<double> losses(rows);
  dispatch_float(p.logits.dtype(), [&]<class T>() {
    const T* x = p.logits.data<T>();
    const std::int64_t apart = p.logits.stride(0);
    for_each_rows(rows, classes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        losses[r] = row_loss(p, x + r * apart, classes, r);
      }
    });
  });
  const auto* target = p.targets.data<std::int64_t>();
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (target[r] == p.ignore_index) continue;
    sum += losses[r];
    ++count;
  }
  *p.loss.data<float>() = static_cast<float>(sum / static_cast<double>(count));
  *p.count.data<float>() = static_cast<float>(count);
}

// dx = dloss (p (1 + 2 z lse) - wanted), where wanted is spread evenly but for the target.
template <class T>
void backward_row(const CrossEntropyProblem& p, float dloss, const T* x, T* dx, std::int64_t r) {
  const std::int64_t classes = p.logits.size(-1), target = p.targets.data<std::int64_t>()[r];
  if (target == p.ignore_index) {
    std::fill_n(dx, classes, T(0.0f));
    return;
  }
  const F32 d;
  const float lse = p.lse.data<float>()[r], slope = dloss * (1 + 2 * p.z_loss * lse);
  const float probability = std::exp(static_cast<float>(x[target]) - lse);  // dx may be x
  const float even = dloss * p.label_smoothing / static_cast<float>(classes);
  const VecF32 top = hn::Set(d, lse), factor = hn::Set(d, slope), wanted = hn::Set(d, even);
  for_lanes(classes, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 e = exp_below(load_lanes(x + i, n), top);
    store_lanes(hn::Sub(hn::Mul(e, factor), wanted), dx + i, n);
  });
  dx[target] = T(probability * slope - even - dloss * (1 - p.label_smoothing));
}

void cross_entropy_backward_kernel(const CrossEntropyBackward& b) {
  const CrossEntropyProblem& p = *b.forward;
  const Tensor& logits = p.logits;
  const std::int64_t classes = logits.size(-1);
  const float dloss = *b.dloss.data<float>() / *p.count.data<float>();  // without any, not used
  dispatch_float(logits.dtype(), [&]<class T>() {
    const T* x = logits.data<T>();
    T* dx = b.dlogits.data<T>();
    const std::int64_t apart = logits.stride(0), dapart = b.dlogits.stride(0);
    for_each_rows(logits.numel() / classes, classes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        backward_row(p, dloss, x + r * apart, dx + r * dapart, r);
      }
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(cross_entropy_kernel);
HWY_EXPORT(cross_entropy_backward_kernel);

void cross_entropy(const CrossEntropyProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(cross_entropy_kernel)(problem);
}

void cross_entropy_backward(const CrossEntropyBackward& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(cross_entropy_backward_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
