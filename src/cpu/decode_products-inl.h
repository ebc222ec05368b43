// The products of a decode by vectors of f32: a few query rows against keys and values of any
// dtype, read where they lie. Per-target code: included once per SIMD target.
#if defined(QKV_CPU_DECODE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_DECODE_PRODUCTS_INL_H_
#undef QKV_CPU_DECODE_PRODUCTS_INL_H_
#else
#define QKV_CPU_DECODE_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/gemm_tile-inl.h"
#include "cpu/prefetch.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE auto load_wide(const T* from) {
  const hn::ScalableTag<float> d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    const hn::RebindToSigned<decltype(d)> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from)));
  } else if constexpr (std::is_same_v<T, f16> && !kHalfByInstruction) {
    HWY_ALIGN float wide[hn::MaxLanes(d)];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = static_cast<float>(from[i]);
    return hn::Load(d, wide);
  } else {
    using Lane = std::conditional_t<std::is_same_v<T, bf16>, hwy::bfloat16_t, hwy::float16_t>;
    const hn::Rebind<Lane, decltype(d)> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const Lane*>(from)));
  }
}

// scores[i][j] = q_i . k_j for kRows rows and two keys: the keys are read once for all rows.
template <int kRows, class T>
HWY_INLINE void score_two_keys(const float* q, std::int64_t q_stride, const T* k0, const T* k1,
                               std::int64_t depth, float* scores, std::int64_t stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum0[kRows], sum1[kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) sum0[i] = sum1[i] = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + lanes <= depth; c += lanes) {
    const V x0 = load_wide(k0 + c), x1 = load_wide(k1 + c);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V y = hn::LoadU(d, q + i * q_stride + c);
      sum0[i] = hn::MulAdd(y, x0, sum0[i]);
      sum1[i] = hn::MulAdd(y, x1, sum1[i]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    float a = hn::GetLane(hn::SumOfLanes(d, sum0[i])), b = hn::GetLane(hn::SumOfLanes(d, sum1[i]));
    for (std::int64_t rest = c; rest < depth; ++rest) {
      a += q[i * q_stride + rest] * static_cast<float>(k0[rest]);
      b += q[i * q_stride + rest] * static_cast<float>(k1[rest]);
    }
    scores[i * stride] = a;
    scores[i * stride + 1] = b;
  }
}

#if HWY_TARGET == HWY_NEON

// The same for four keys: enough sums to cover the latency of a multiply-add, where rows are few in
// several sets. Their scores stand `step` apart. depth is a multiple of 4 * kSets.
template <int kRows>
inline constexpr int kScoreSets = kRows == 1   ? 4
                                  : kRows == 2 ? 2
                                               : 1;

template <int kRows, class T>
HWY_INLINE void score_four_keys(const float* q, std::int64_t q_stride, const T* keys,
                                std::int64_t key_stride, std::int64_t depth, float* scores,
                                std::int64_t stride, std::int64_t step) {
  constexpr int kSets = kScoreSets<kRows>;
  float32x4_t sum[kSets][kRows][4];
  unrolled<kSets>([&](auto set) HWY_ATTR {
    unrolled<kRows>([&](auto i) HWY_ATTR {
      unrolled<4>([&](auto j) HWY_ATTR { sum[set][i][j] = vdupq_n_f32(0); });
    });
  });
  for (std::int64_t c = 0; c < depth; c += 4 * kSets) {
    unrolled<kSets>([&](auto set) HWY_ATTR {
      float32x4_t y[kRows];
      unrolled<kRows>([&](auto i) HWY_ATTR { y[i] = vld1q_f32(q + i * q_stride + c + 4 * set); });
      unrolled<4>([&](auto j) HWY_ATTR {
        const float32x4_t x = load_wide(keys + j * key_stride + c + 4 * set).raw;
        unrolled<kRows>([&](auto i)
                            HWY_ATTR { sum[set][i][j] = vfmaq_f32(sum[set][i][j], y[i], x); });
      });
    });
  }
  unrolled<kRows>([&](auto i) HWY_ATTR {
    unrolled<kSets - 1>([&](auto set) HWY_ATTR {
      unrolled<4>([&](auto j)
                      HWY_ATTR { sum[0][i][j] = vaddq_f32(sum[0][i][j], sum[set + 1][i][j]); });
    });
    const auto& x = sum[0][i];
    const float32x4_t four = vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
    float* to = scores + i * stride;
    vst1q_lane_f32(to, four, 0);
    vst1q_lane_f32(to + step, four, 1);
    vst1q_lane_f32(to + 2 * step, four, 2);
    vst1q_lane_f32(to + 3 * step, four, 3);
  });
}

#endif

template <int kRows, class T>
void score_keys(const float* q, std::int64_t q_stride, const Rows& keys, std::int64_t count,
                std::int64_t depth, float* scores, std::int64_t stride) {
  const auto* key = reinterpret_cast<const T*>(keys.data);
  std::int64_t j = 0;
#if HWY_TARGET == HWY_NEON
  if (kRows <= 4 && depth % (4 * kScoreSets<kRows>) == 0) {
    constexpr int kFew = kRows <= 4 ? kRows : 1;
    // One key of each quarter: four long streams, which the processor reads ahead.
    const std::int64_t quarter = count / 4;
    for (; j < quarter; ++j) {
      score_four_keys<kFew>(q, q_stride, key + j * keys.stride, quarter * keys.stride, depth,
                            scores + j, stride, quarter);
    }
    j = 4 * quarter;
  }
#endif
  for (; j < count; j += 2) {
    const T* first = key + j * keys.stride;
    // The second of an odd last pair is the first again; its score lands in the padding.
    const T* second = j + 1 < count ? first + keys.stride : first;
    score_two_keys<kRows>(q, q_stride, first, second, depth, scores + j, stride);
  }
}

// Values are summed over so many keys for all their columns: a line read for some columns is still
// in the first-level cache for the next.
inline constexpr std::int64_t kKeysInCache = 16;

#if HWY_TARGET == HWY_NEON

// As sum_values, for a multiple of four keys: four weights of a row are one vector, whose lanes
// multiply. Returns the columns it did, all but those that fill no block of kVectors.
template <int kRows, class T, Ask kAsk>
std::int64_t sum_values_by_lanes(const float* p, std::int64_t stride, const Rows& values,
                                 std::int64_t count, std::int64_t size, float* sums, bool add) {
  constexpr int kVectors = kRows <= 2 ? 8 : 4;
  constexpr int kLines = std::max<int>(1, 4 * (4 * kVectors * sizeof(T)) / 64);  // of four rows
  constexpr std::int64_t kSize = sizeof(T);
  const auto* value = reinterpret_cast<const T*>(values.data);
  RowsAhead<kAsk> next(value + count * values.stride, values.stride * kSize, size * kSize);
  std::int64_t c = 0;
  for (; c + 4 * kVectors <= size; c += 4 * kVectors) {
    float32x4_t sum[kRows][kVectors];
    float* to = sums + c;
    unrolled<kRows>([&](auto i) HWY_ATTR {
      unrolled<kVectors>([&](auto v) HWY_ATTR {
        sum[i][v] = add ? vld1q_f32(to + i * size + 4 * v) : vdupq_n_f32(0);
      });
    });
    const T* row = value + c;
    for (std::int64_t j = 0; j < count; j += 4) {
      next.template ask<kLines>();
      float32x4_t weight[kRows];
      unrolled<kRows>([&](auto i) HWY_ATTR { weight[i] = vld1q_f32(p + i * stride + j); });
      unrolled<4>([&](auto lane) HWY_ATTR {
        unrolled<kVectors>([&](auto v) HWY_ATTR {
          const float32x4_t x = load_wide(row + 4 * v).raw;
          unrolled<kRows>(
              [&](auto i) HWY_ATTR { sum[i][v] = vfmaq_laneq_f32(sum[i][v], x, weight[i], lane); });
        });
        row += values.stride;
      });
    }
    unrolled<kRows>([&](auto i) HWY_ATTR {
      unrolled<kVectors>([&](auto v) HWY_ATTR { vst1q_f32(to + i * size + 4 * v, sum[i][v]); });
    });
  }
  return c;
}

#endif

// sums[i][..] (+)= sum over j of p[i][j] v[j][..], a few vectors of columns at a time. From memory,
// rows that are few wait for it, and what they wait for is asked for early.
template <int kRows, class T>
void sum_values(const float* p, std::int64_t stride, const Rows& values, std::int64_t count,
                std::int64_t size, float* sums, bool add, [[maybe_unused]] bool from_memory) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kVectors = kRows > 4 ? 2 : 4;
  const auto* value = reinterpret_cast<const T*>(values.data);
  std::int64_t c = 0;
#if HWY_TARGET == HWY_NEON
  if constexpr (kRows <= 4) {
    if (count % 4 == 0) {
      constexpr Ask kEarly = kRows <= 2 ? Ask::far : Ask::near;
      const auto by_lanes = from_memory ? sum_values_by_lanes<kRows, T, kEarly>
                                        : sum_values_by_lanes<kRows, T, Ask::near>;
      c = by_lanes(p, stride, values, count, size, sums, add);
    }
  }
#endif
  for (; c + kVectors * lanes <= size; c += kVectors * lanes) {
    V sum[kRows][kVectors];
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = add ? hn::LoadU(d, sums + i * size + c + v * lanes) : hn::Zero(d);
      }
    }
    const T* row = value + c;
    for (std::int64_t j = 0; j < count; ++j, row += values.stride) {
      V x[kVectors];
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) x[v] = load_wide(row + v * lanes);
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) {
        const V weight = hn::Set(d, p[i * stride + j]);
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(weight, x[v], sum[i][v]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, sums + i * size + c + v * lanes);
    }
  }
  for (; c < size; ++c) {
    for (int i = 0; i < kRows; ++i) {
      float sum = add ? sums[i * size + c] : 0;
      for (std::int64_t j = 0; j < count; ++j) {
        sum += p[i * stride + j] * static_cast<float>(value[j * values.stride + c]);
      }
      sums[i * size + c] = sum;
    }
  }
}

// Calls body with the number of rows as a constant.
template <class Body>
void with_rows(std::int64_t rows, Body body) {
  switch (rows) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    case 6: return body(std::integral_constant<int, 6>());
    case 7: return body(std::integral_constant<int, 7>());
    default: return body(std::integral_constant<int, 8>());
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
