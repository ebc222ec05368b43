// The parts of softmax and cross entropy along a row. Per-target code: included once per SIMD
// target.
#if defined(QKV_CPU_LOG_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_LOG_SUM_INL_H_
#undef QKV_CPU_LOG_SUM_INL_H_
#else
#define QKV_CPU_LOG_SUM_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/activation-inl.h"
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest element, NaN passed over; -inf when there is none.
template <class T>
inline float max_of(const T* x, std::int64_t count) {
  const F32 d;
  const VecF32 none = hn::Set(d, -std::numeric_limits<float>::infinity());
  VecF32 max = none;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    VecF32 v = load_lanes(x + i, n);
    if (n < lane_count()) {
      v = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), v, none);
    }
    // false for NaN
    max = hn::IfThenElse(hn::Gt(v, max), v, max);
  });
  return largest_lane(max);
}

template <class T>
inline bool has_nan(const T* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(static_cast<float>(x[i]))) return true;
  }
  return false;
}

// e^(x - top) for x up to a rounding above top; 0 for x = -inf. What the subtraction rounds away is
// given back: at a distance of 20 it would be a rounding error of 1e-6 in the result.
HWY_INLINE VecF32 exp_below(VecF32 x, VecF32 top) {
  const F32 d;
  const VecF32 y = hn::Sub(top, x), x_seen = hn::Sub(top, y);
  const VecF32 minus_rest = hn::Add(hn::Sub(hn::Add(y, x_seen), top), hn::Sub(x, x_seen));
  const VecF32 e = exp_minus(d, y);
  return hn::MulAdd(hn::IfThenElseZero(hn::Lt(y, hn::Set(d, 200.0f)), minus_rest), e, e);
}

// The sum of e^(x - max); the terms themselves go to `terms` unless it is null.
template <class T>
inline double exp_sum(const T* x, std::int64_t count, float max, float* terms) {
  const VecF32 top = hn::Set(F32(), max);
  Sum sum;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 e = exp_below(load_lanes(x + i, n), top);
    if (terms != nullptr) store_lanes(e, terms + i, n);
    sum.add(first_lanes(e, n));
  });
  return sum.total();
}

// log(sum(e^x)), a piece at a time: a vocabulary is read from memory once.
template <class T>
inline double log_sum_of(const T* x, std::int64_t count) {
  constexpr std::int64_t kPiece = 4096;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float max = kNone;
  double sum = 0;  // of e^(x - max)
  for (std::int64_t i = 0; i < count; i += kPiece) {
    const std::int64_t n = std::min(kPiece, count - i);
    const float largest = max_of(x + i, n);
    if (largest == kNone) {  // hidden, or NaN, which is no maximum
      if (has_nan(x + i, n)) return std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    if (largest > max) {
      sum *= std::exp(double{max} - largest);
      max = largest;
    }
    sum += exp_sum(x + i, n, max, nullptr);
  }
  return max + std::log(sum);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
