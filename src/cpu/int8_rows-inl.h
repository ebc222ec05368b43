// A run of f32 as int8: its largest magnitude, and its elements rounded. Per-target code: included
// once per SIMD target. Every target finds the same numbers.
#if defined(QKV_CPU_INT8_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_INT8_ROWS_INL_H_
#undef QKV_CPU_INT8_ROWS_INL_H_
#else
#define QKV_CPU_INT8_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What a group is multiplied by, and its inverse; 0 and 0 where the elements vanish.
struct Int8Scale {
  float scale, inverse;
};

// Of the largest of |x|. The bits of magnitudes have the order of the magnitudes themselves, and
// NaN comes last: it is not lost on the way, as it would be in a floating-point maximum.
HWY_INLINE Int8Scale int8_scale(const float* x, std::int64_t count) {
  constexpr float kTiny = 1e-30f;  // 127 / kTiny is finite
  const hn::RebindToSigned<F32> di;
  const auto magnitude = hn::Set(di, 0x7fffffff);
  const auto magnitude_at = [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    return hn::And(hn::BitCast(di, load_lanes(x + i, n)), magnitude);
  };
  auto most = hn::Zero(di), others = hn::Zero(di);  // two chains: a maximum takes two cycles
  const std::int64_t lanes = lane_count();
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most = hn::Max(most, magnitude_at(i, lanes));
    others = hn::Max(others, magnitude_at(i + lanes, lanes));
  }
  most = hn::Max(most, others);
  for_lanes(count - i, [&](std::int64_t j, std::int64_t n)
                           QKV_LANES_BODY { most = hn::Max(most, magnitude_at(i + j, n)); });
  const float largest = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, most)));
  if (!(largest <= std::numeric_limits<float>::max())) {
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  return largest > kTiny ? Int8Scale{largest / 127, 127 / largest} : Int8Scale{0, 0};
}

// to = x * inverse, rounded to nearest even; returns their sum. Elements that vanish, or are not
// finite, become 0.
HWY_INLINE std::int32_t round_to_int8(const float* x, std::int64_t count, float inverse,
                                      std::int8_t* to) {
  if (inverse == 0) {
    std::fill_n(to, count, std::int8_t{0});
    return 0;
  }
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<std::int8_t, F32> d8;
  const VecF32 factor = hn::Set(d, inverse);
  auto sum = hn::Zero(di);
  const std::int64_t lanes = lane_count();
  std::int64_t i = 0;
#if HWY_TARGET == HWY_NEON
  // Whole vectors of bytes: numbers that fit are made narrow by leaving out the bytes above, three
  // instructions for sixteen of them.
  for (; i + 16 <= count; i += 16) {
    int32x4_t whole[4];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      whole[j] = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + i + 4 * j), factor.raw));
    }
    const auto pair = [](int32x4_t a, int32x4_t b) HWY_ATTR {
      return vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
    };
    const int8x16_t bytes = vuzp1q_s8(vreinterpretq_s8_s16(pair(whole[0], whole[1])),
                                      vreinterpretq_s8_s16(pair(whole[2], whole[3])));
    sum.raw = vpadalq_s16(sum.raw, vpaddlq_s8(bytes));
    vst1q_s8(to + i, bytes);
  }
#endif
  for (; i + lanes <= count; i += lanes) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factor));
    sum = hn::Add(sum, whole);
    hn::StoreU(hn::DemoteTo(d8, whole), d8, to + i);
  }
  if (i < count) {
    HWY_ALIGN std::int8_t last[hn::MaxLanes(d)];
    const auto whole = hn::NearestInt(hn::Mul(load_lanes(x + i, count - i), factor));
    sum = hn::Add(sum, whole);
    hn::StoreU(hn::DemoteTo(d8, whole), d8, last);
    std::copy_n(last, count - i, to + i);
  }
  return hn::GetLane(hn::SumOfLanes(di, sum));
}

// to = from * scale.
HWY_INLINE void widen_int8(const std::int8_t* from, std::int64_t count, float scale, float* to) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<std::int8_t, F32> d8;
  const VecF32 factor = hn::Set(d, scale);
  const std::int64_t lanes = lane_count();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto whole = hn::PromoteTo(di, hn::LoadU(d8, from + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, whole), factor), d, to + i);
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
