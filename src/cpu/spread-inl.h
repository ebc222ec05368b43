// Outliers of a row spread over several elements, by a Hadamard transform. Per-target code:
// included once per SIMD target. Every target finds the same numbers.
#if defined(QKV_CPU_SPREAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_SPREAD_INL_H_
#undef QKV_CPU_SPREAD_INL_H_
#else
#define QKV_CPU_SPREAD_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "core/spread.h"
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums and differences of elements kStep apart.
template <int kStep, int kCount>
HWY_INLINE void spread_step(VecF32 (&v)[kCount]) {
  HWY_UNROLL(8)
  for (int pair = 0; pair < kCount / 2; ++pair) {
    const int i = pair / kStep * 2 * kStep + pair % kStep;
    const VecF32 sum = hn::Add(v[i], v[i + kStep]);
    v[i + kStep] = hn::Sub(v[i], v[i + kStep]);
    v[i] = sum;
  }
}

// Elements `stride` apart are mixed: whole vectors of them, without a shuffle.
template <int kCount>
HWY_INLINE void spread_run(const float* x, std::int64_t stride, float* y) {
  for_lanes(stride, [&](std::int64_t k, std::int64_t n) QKV_LANES_BODY {
    VecF32 v[kCount];
    HWY_UNROLL(16)
    for (int i = 0; i < kCount; ++i) v[i] = load_lanes(x + i * stride + k, n);
    spread_step<1>(v);
    spread_step<2>(v);
    if constexpr (kCount == 16) {
      spread_step<4>(v);
      spread_step<8>(v);
    }
    HWY_UNROLL(16)
    for (int i = 0; i < kCount; ++i) store_lanes(v[i], y + i * stride + k, n);
  });
}

// y times what is returned, a power of two, is x H for a row of `width`; y may be x. H is its own
// inverse.
inline float spread_row(const float* x, std::int64_t width, float* y) {
  switch (spread_of(width)) {
    case 16: spread_run<16>(x, width / 16, y); return 0.25f;
    case 4: spread_run<4>(x, width / 4, y); return 0.5f;
    default:
      if (x != y) std::copy_n(x, width, y);
      return 1;
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
