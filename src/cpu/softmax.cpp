// softmax along the last axis and its gradient, one source for every SIMD target.
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/log_sum-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// `weights` is room for a row of f32: y itself, or scratch where y is narrower, so that nothing is
// rounded twice.
template <class T>
void softmax_row(const T* x, T* y, std::int64_t count, float* weights) {
  const float max = max_of(x, count);
  if (max == -std::numeric_limits<float>::infinity() && !has_nan(x, count)) {
    std::fill_n(y, count, T(0.0f));  // sees nothing: zeros, not 0 / 0
    return;
  }
  const double sum = exp_sum(x, count, max, weights);
  const VecF32 share = hn::Set(F32(), static_cast<float>(1 / sum));
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    store_lanes(hn::Mul(load_lanes(weights + i, n), share), y + i, n);
  });
}

void softmax_kernel(const Tensor& x, Tensor& y) {
  const std::int64_t count = x.size(-1);
  if (x.numel() == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_each_rows(x.numel() / count, count, [&](std::int64_t begin, std::int64_t end) {
      constexpr bool kInPlace = std::is_same_v<T, float>;
      const Scratch<float> buffer(kInPlace ? 0 : count);
      for (std::int64_t at = begin * count; at < end * count; at += count) {
        float* weights = buffer.get();
        if constexpr (kInPlace) weights = to + at;
        softmax_row(from + at, to + at, count, weights);
      }
    });
  });
}

// dx = y * (dy - sum(y * dy))
template <class T>
void softmax_backward_row(const T* y, const T* dy, T* dx, std::int64_t count) {
  Sum dot;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    dot.add(hn::Mul(load_lanes(y + i, n), load_lanes(dy + i, n)));
  });
  const VecF32 mean = hn::Set(F32(), static_cast<float>(dot.total()));
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 d = hn::Sub(load_lanes(dy + i, n), mean);
    store_lanes(hn::Mul(load_lanes(y + i, n), d), dx + i, n);
  });
}

void softmax_backward_kernel(const Tensor& y, const Tensor& dy, Tensor& dx) {
  const std::int64_t count = y.size(-1);
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    const T* py = y.data<T>();
    const T* pdy = dy.data<T>();
    T* pdx = dx.data<T>();
    for_each_rows(y.numel() / count, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin * count; at < end * count; at += count) {
        softmax_backward_row(py + at, pdy + at, pdx + at, count);
      }
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(softmax_kernel);
HWY_EXPORT(softmax_backward_kernel);

void softmax(const Tensor& x, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(softmax_kernel)(x, y);
}

void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(softmax_backward_kernel)(y, dy, dx);
}

}  // namespace qkv::cpu
#endif
