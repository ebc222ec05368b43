// Vectors of f32 to and from f32, bf16 and f16 in memory, whole or in part, and sums of them.
// Per-target code: included once per SIMD target.
#if defined(QKV_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_LANES_INL_H_
#undef QKV_CPU_LANES_INL_H_
#else
#define QKV_CPU_LANES_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/rows-inl.h"
#include "hwy/highway.h"
#include "qkv/dtype.h"

// For the bodies of for_lanes: inlined into both of its calls, so that in the first one a whole
// vector is known to be whole. A build with sanitizers says otherwise (cmake/QkvCpuTargets.cmake).
#ifndef QKV_LANES_BODY
#define QKV_LANES_BODY HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;

HWY_INLINE std::int64_t lane_count() { return static_cast<std::int64_t>(hn::Lanes(F32())); }

template <class T>
inline constexpr bool kByVector = std::is_same_v<T, bf16> || kHalfByInstruction;

template <class T>
HWY_INLINE VecF32 load_lanes(const T* from) {
  const F32 d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (kByVector<T>) {
    using Lane = std::conditional_t<std::is_same_v<T, bf16>, hwy::bfloat16_t, hwy::float16_t>;
    const hn::Rebind<Lane, F32> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const Lane*>(from)));
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    for (std::int64_t i = 0; i < lane_count(); ++i) lanes[i] = static_cast<float>(from[i]);
    return hn::Load(d, lanes);
  }
}

template <class T>
HWY_INLINE void store_lanes(VecF32 x, T* to) {
  const F32 d;
  if constexpr (std::is_same_v<T, float>) {
    hn::StoreU(x, d, to);
  } else if constexpr (std::is_same_v<T, bf16>) {
    store_bf16(x, to);
  } else if constexpr (kByVector<T>) {
    const hn::Rebind<hwy::float16_t, F32> narrow;
    hn::StoreU(hn::DemoteTo(narrow, x), narrow, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(x, d, lanes);
    for (std::int64_t i = 0; i < lane_count(); ++i) to[i] = T(lanes[i]);
  }
}

// The first `count` lanes; the others are 0.
template <class T>
HWY_INLINE VecF32 load_lanes(const T* from, std::int64_t count) {
  if (count == lane_count()) return load_lanes(from);
  HWY_ALIGN T lanes[hn::MaxLanes(F32())] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(T));
  return load_lanes(lanes);
}

template <class T>
HWY_INLINE void store_lanes(VecF32 x, T* to, std::int64_t count) {
  if (count == lane_count()) return store_lanes(x, to);
  HWY_ALIGN T lanes[hn::MaxLanes(F32())];
  store_lanes(x, lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(T));
}

// Calls body(i, n) for whole vectors, n = lane_count(), and once for what is left.
template <class Body>
HWY_INLINE void for_lanes(std::int64_t count, Body&& body) {
  const std::int64_t lanes = lane_count();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, lanes);
  if (i < count) body(i, count - i);
}

// 0 in lanes from `count` on.
HWY_INLINE VecF32 first_lanes(VecF32 x, std::int64_t count) {
  if (count == lane_count()) return x;
  return hn::IfThenElseZero(hn::FirstN(F32(), static_cast<std::size_t>(count)), x);
}

// Sums of many terms: f32 within a block, few terms in a chain, and blocks in double.
struct Sum {
  static constexpr int kBlock = 64;  // vectors

  VecF32 lanes, others;
  double blocks = 0;
  int terms = 0;

  HWY_INLINE Sum() : lanes(hn::Zero(F32())), others(hn::Zero(F32())) {}

  HWY_INLINE void add(VecF32 x) {
    lanes = hn::Add(lanes, x);
    if (++terms == kBlock) flush();
  }
  // Two chains: an addition takes several cycles, and one begins each.
  HWY_INLINE void add(VecF32 x, VecF32 y) {
    lanes = hn::Add(lanes, x);
    others = hn::Add(others, y);
    if ((terms += 2) >= kBlock) flush();
  }
  HWY_INLINE void flush() {
    blocks += hn::GetLane(hn::SumOfLanes(F32(), hn::Add(lanes, others)));
    lanes = others = hn::Zero(F32());
    terms = 0;
  }
  HWY_INLINE double total() {
    flush();
    return blocks;
  }
};

// Elements in double, by the same scheme.
template <class T>
inline double sum_of(const T* x, std::int64_t count) {
  Sum sum;
  const std::int64_t lanes = lane_count();
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes)
    sum.add(load_lanes(x + i), load_lanes(x + i + lanes));
  for_lanes(count - i, [&](std::int64_t j, std::int64_t n)
                           QKV_LANES_BODY { sum.add(load_lanes(x + i + j, n)); });
  return sum.total();
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
