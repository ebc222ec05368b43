// Positive random features of the softmax kernel, one source for every SIMD target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/linear_kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/features.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/log_sum-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <class T>
double squares_of(const T* x, std::int64_t count) {
  Sum sum;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 v = load_lanes(x + i, n);
    sum.add(hn::Mul(v, v));
  });
  return sum.total();
}

// y = exp(projected - top) * share
template <class T>
void exp_row(const float* projected, float top, float share, T* y, std::int64_t count) {
  const VecF32 high = hn::Set(F32(), top), factor = hn::Set(F32(), share);
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 e = exp_below(load_lanes(projected + i, n), high);
    store_lanes(hn::Mul(e, factor), y + i, n);
  });
}

// What each row's exponents are relative to: its own largest, or half_scale |x|^2 plus that of the
// group.
template <class T>
void find_tops(const FeatureProblem& p, float* tops) {
  const std::int64_t rows = p.x.size(0) * p.x.size(1), size = p.x.size(2);
  const std::int64_t features = p.y.size(2);
  const float* projected = p.projected.data<float>();
  const T* x = p.x.data<T>();
  for_each_rows(rows, features, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      tops[r] = max_of(projected + r * features, features);
    }
  });
  if (!p.top.defined()) return;
  const Scratch<float> offsets(rows);
  for_each_rows(rows, size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      offsets[r] = static_cast<float>(p.half_scale * squares_of(x + r * size, size));
    }
  });
  const std::int64_t length = p.x.size(1);
  for (std::int64_t g = 0; g < p.x.size(0); ++g) {
    float& top = p.top.data<float>()[g];
    const float before = top;
    for (std::int64_t r = g * length; r < (g + 1) * length; ++r) {
      top = std::max(top, tops[r] - offsets[r]);
    }
    p.decay.data<float>()[g] = std::isinf(before) ? 0.0f : std::exp(before - top);
    for (std::int64_t r = g * length; r < (g + 1) * length; ++r) tops[r] = offsets[r] + top;
  }
}

void softmax_features_kernel(const FeatureProblem& p) {
  const std::int64_t rows = p.x.size(0) * p.x.size(1), features = p.y.size(2);
  const auto share = static_cast<float>(1 / std::sqrt(static_cast<double>(features)));
  const Scratch<float> tops(rows);
  dispatch_float(p.x.dtype(), [&]<class T>() {
    find_tops<T>(p, tops.get());
    const float* projected = p.projected.data<float>();
    T* y = p.y.data<T>();
    for_each_rows(rows, features, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        exp_row(projected + r * features, tops[r], share, y + r * features, features);
      }
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(softmax_features_kernel);

void softmax_features(const FeatureProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(softmax_features_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
