// Moving rows between tensors of any dtype and stride and contiguous f32 or bf16 working memory.
// Per-target code: included once per SIMD target.
#if defined(QKV_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_ROWS_INL_H_
#undef QKV_CPU_ROWS_INL_H_
#else
#define QKV_CPU_ROWS_INL_H_
#endif

#include <cstring>

#include "cpu/attention_plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest lane of f32. Where it emulates vectors, Highway 1.0.3 begins with the lowest finite
// number, and -inf would be lost.
template <class V>
HWY_INLINE float largest_lane(V v) {
#if HWY_TARGET == HWY_EMU128
  float largest = v.raw[0];
  for (const float lane : v.raw) largest = lane > largest ? lane : largest;
  return largest;
#else
  return hn::GetLane(hn::MaxOfLanes(hn::ScalableTag<float>(), v));
#endif
}

// The largest and the sum of kCount vectors. By halves: a chain would be waited for.
template <int kCount, class V>
HWY_INLINE V max_by_halves(const V* x) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    return hn::Max(max_by_halves<kCount / 2>(x),
                   max_by_halves<kCount - kCount / 2>(x + kCount / 2));
  }
}
template <int kCount, class V>
HWY_INLINE V sum_by_halves(const V* x) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    return hn::Add(sum_by_halves<kCount / 2>(x),
                   sum_by_halves<kCount - kCount / 2>(x + kCount / 2));
  }
}

// Highway 1.0.3 emulates f16 where the target has no instruction for it, without infinities and NaN
// (-inf becomes -65536) and without rounding; f16 itself has them, one at a time.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)
inline constexpr bool kHalfByInstruction = false;
#else
inline constexpr bool kHalfByInstruction = true;
#endif

template <class T>
HWY_INLINE void load_row(const T* from, std::int64_t step, std::int64_t count, float* to) {
  const hn::ScalableTag<float> d;
  std::int64_t i = 0;
  if (step == 1) {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    } else if constexpr (std::is_same_v<T, bf16> || kHalfByInstruction) {
      using Lane = std::conditional_t<std::is_same_v<T, bf16>, hwy::bfloat16_t, hwy::float16_t>;
      const hn::Rebind<Lane, decltype(d)> narrow;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
      for (; i + lanes <= count; i += lanes) {
        const auto* lane = reinterpret_cast<const Lane*>(from + i);
        hn::StoreU(hn::PromoteTo(d, hn::LoadU(narrow, lane)), d, to + i);
      }
    }
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i * step]);
}

// to[r][0 .. columns) = f32 of row r, `to_stride` apart; zeros up to `padded` columns.
inline void load_rows(const Rows& from, std::int64_t rows, std::int64_t columns, float* to,
                      std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r, to += to_stride) {
    const std::byte* row = from.row(r);
    switch (from.dtype) {
      case DType::bf16: load_row(reinterpret_cast<const bf16*>(row), from.step, columns, to); break;
      case DType::f16: load_row(reinterpret_cast<const f16*>(row), from.step, columns, to); break;
      default: load_row(reinterpret_cast<const float*>(row), from.step, columns, to);
    }
    std::fill(to + columns, to + to_stride, 0.0f);
  }
}

// The same bits: rows of bf16 or f16 to contiguous rows of them, or of their bits.
template <class T>
requires(sizeof(T) == 2) void load_rows(const Rows& from, std::int64_t rows, std::int64_t columns,
                                        T* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r, to += to_stride) {
    const auto* row = reinterpret_cast<const T*>(from.row(r));
    if (from.step == 1) {
      std::memcpy(to, row, static_cast<std::size_t>(columns) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < columns; ++i) to[i] = row[i * from.step];
    }
    std::fill(to + columns, to + to_stride, T());
  }
}

// One vector rounded to nearest even, NaN kept, as bf16(float) does.
template <class V>
HWY_INLINE void store_bf16(V x, bf16* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint16_t, decltype(d)> narrow;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto is_nan = hn::RebindMask(du, hn::Ne(x, x));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(hn::RebindToSigned<decltype(d)>(), upper)), narrow,
             reinterpret_cast<std::uint16_t*>(to));
}

// Two vectors of weights: adding half a unit in the last place and taking the upper halves rounds
// to nearest, ties away from 0. A NaN may be lost; whoever uses weights has their sum besides.
template <class V>
HWY_INLINE void store_narrow(V low, V high, bf16* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto half = hn::Set(du, 0x8000u);
  const auto a = hn::Add(hn::BitCast(du, low), half), b = hn::Add(hn::BitCast(du, high), half);
#if HWY_TARGET == HWY_SCALAR
  to[0].bits = static_cast<std::uint16_t>(hn::GetLane(a) >> 16);
  to[1].bits = static_cast<std::uint16_t>(hn::GetLane(b) >> 16);
#else
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, b), hn::BitCast(d16, a)), d16,
             reinterpret_cast<std::uint16_t*>(to));
#endif
}

// The same as f16, to nearest even.
template <class V>
HWY_INLINE void store_narrow(V low, V high, f16* to) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  if constexpr (kHalfByInstruction) {
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    auto* halves = reinterpret_cast<hwy::float16_t*>(to);
    hn::StoreU(hn::DemoteTo(half, low), half, halves);
    hn::StoreU(hn::DemoteTo(half, high), half, halves + lanes);
  } else {
    HWY_ALIGN float wide[2 * hn::MaxLanes(d)];
    hn::Store(low, d, wide);
    hn::Store(high, d, wide + lanes);
    for (std::size_t i = 0; i < 2 * lanes; ++i) to[i] = f16(wide[i]);
  }
}

#if HWY_TARGET == HWY_NEON
// One vector as bf16.
template <class V>
HWY_INLINE void store_narrow(V x, bf16* to) {
  const uint32x4_t half = vdupq_n_u32(0x8000u);
  vst1_u16(&to->bits, vaddhn_u32(vreinterpretq_u32_f32(x.raw), half));
}
#else
template <class V>
void store_narrow(V x, bf16* to) = delete;
#endif

// Row r of the tensor = f32 values rounded to its dtype.
inline void store_row(const float* from, std::int64_t count, const Rows& to, std::int64_t r) {
  std::byte* row = to.row(r);
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  switch (to.dtype) {
    case DType::bf16: {
      auto* out = reinterpret_cast<bf16*>(row);
      if (to.step == 1) {
        for (; i + lanes <= count; i += lanes) store_bf16(hn::LoadU(d, from + i), out + i);
      }
      for (; i < count; ++i) out[i * to.step] = bf16(from[i]);
      break;
    }
    case DType::f16: {
      auto* out = reinterpret_cast<f16*>(row);
      const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
      if (kHalfByInstruction && to.step == 1) {
        for (; i + lanes <= count; i += lanes) {
          hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(d, from + i)), narrow,
                     reinterpret_cast<hwy::float16_t*>(out + i));
        }
      }
      for (; i < count; ++i) out[i * to.step] = f16(from[i]);
      break;
    }
    default: {
      auto* out = reinterpret_cast<float*>(row);
      if (to.step == 1) {
        std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
      } else {
        for (; i < count; ++i) out[i * to.step] = from[i];
      }
    }
  }
}

// Whether every value is finite: x - x is 0 exactly then.
inline bool all_finite(const float* x, std::int64_t count) {
  constexpr int kTogether = 4;  // a chain would be waited for
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> bad[kTogether];
  HWY_UNROLL(4)
  for (auto& b : bad) b = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kTogether * lanes <= count; i += kTogether * lanes) {
    HWY_UNROLL(4)
    for (int j = 0; j < kTogether; ++j) {
      const auto v = hn::LoadU(d, x + i + j * lanes);
      bad[j] = hn::Or(bad[j], hn::Sub(v, v));
    }
  }
  for (; i < count; ++i) {
    if (x[i] - x[i] != 0) return false;
  }
  const auto any = hn::Or(hn::Or(bad[0], bad[1]), hn::Or(bad[2], bad[3]));
  return hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}
inline bool all_finite(const bf16* x, std::int64_t count) {
  std::uint16_t worst = 0;  // an exponent of all ones is an infinity or a NaN
  for (std::int64_t i = 0; i < count; ++i) {
    worst = std::max<std::uint16_t>(worst, x[i].bits & 0x7f80);
  }
  return worst < 0x7f80;
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
