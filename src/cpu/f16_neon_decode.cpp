// Decoding in f16 on Arm by FMLAL (FEAT_FHM): products of halves, exact, added to sums in f32.
#include "cpu/decode_engine.h"

#if defined(__ARM_FEATURE_FP16_FML)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "cpu/neon_decode-inl.h"

namespace qkv::cpu {
namespace f16_neon {
namespace {

using namespace neon_decode;

constexpr std::int64_t kKeysInCache = 64;

QKV_INLINE float16x8_t load(const Bits* x) { return vreinterpretq_f16_u16(vld1q_u16(x)); }

// Calls body(rows, first) for groups of four, two or one rows, their number a constant.
template <class Body>
QKV_INLINE void for_each_group(std::int64_t rows, Body body) {
  std::int64_t first = 0;
  for (; first + 4 <= rows; first += 4) body(std::integral_constant<int, 4>(), first);
  if (first + 2 <= rows) return body(std::integral_constant<int, 2>(), first);
  if (first < rows) body(std::integral_constant<int, 1>(), first);
}

// kRows rows against four keys. Few rows mean few sums, so the two halves of a load go to sums of
// their own.
template <Ask kAsk, int kRows>
void score_block(const Left& q, const Bits* first, const Right& keys, float* c,
                 std::int64_t c_stride) {
  constexpr int kHalves = kRows <= 2 ? 2 : 1;
  float32x4_t sum[kHalves][kRows][4] = {};
  walk_keys<kAsk, 4>(first, keys, [&](std::int64_t k, auto key) {
    float16x8_t y[kRows];
    unrolled<kRows>([&](auto i) { y[i] = load(q.data + i * q.stride + k); });
    unrolled<4>([&](auto j) {
      const float16x8_t x = load(key(j));
      unrolled<kRows>([&](auto i) { sum[0][i][j] = vfmlalq_low_f16(sum[0][i][j], y[i], x); });
      unrolled<kRows>([&](auto i) {
        float32x4_t& high = sum[kHalves - 1][i][j];
        high = vfmlalq_high_f16(high, y[i], x);
      });
    });
  });
  unrolled<kRows>([&](auto i) {
    auto& s = sum[0][i];
    if constexpr (kHalves == 2) {
      unrolled<4>([&](auto j) { s[j] = vaddq_f32(s[j], sum[1][i][j]); });
    }
    vst1q_f32(c + i * c_stride, vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])));
  });
}

// One row against eight keys.
void score_row(const Bits* q, const Bits* first, const Right& keys, std::int64_t apart, float* c) {
  float32x4_t sum[2][8] = {};
  for (std::int64_t k = 0; k < keys.columns; k += 8) {
    const float16x8_t x = load(q + k);
    unrolled<8>([&](auto j) {
      const float16x8_t y = load(first + (j / 2 * apart + j % 2) * keys.stride + k);
      sum[0][j] = vfmlalq_low_f16(sum[0][j], x, y);
      sum[1][j] = vfmlalq_high_f16(sum[1][j], x, y);
    });
  }
  unrolled<8>([&](auto j) { sum[0][j] = vaddq_f32(sum[0][j], sum[1][j]); });
  store_pairs(sum[0], c, apart);
}

template <Ask kAsk>
void scores_ahead(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  for_each_eight(keys, [&](const Bits* eight, const Right& of, std::int64_t j) {
    for (std::int64_t four = 0; four < kKeysAtOnce; four += 4) {
      for_each_group(q.rows, [&](auto rows, std::int64_t i) {
        score_block<kAsk, decltype(rows)::value>({q.data + i * q.stride, q.stride, rows},
                                                 eight + four * of.stride, of,
                                                 c + i * c_stride + j + four, c_stride);
      });
    }
  });
}

void scores(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  if (q.rows == 1) return score_by_quarters(q.data, keys, c, score_row);
  (keys.from_memory ? scores_ahead<Ask::both> : scores_ahead<Ask::near>)(q, keys, c, c_stride);
}

// kRows rows by 8 * kVectors columns: eight weights of a row are one vector, whose lanes multiply.
template <int kRows, int kVectors, Ask kAsk>
void value_block(const Left& p, const Right& x, std::int64_t column, RowsAhead<kAsk>& next,
                 float* c, std::int64_t c_stride) {
  float32x4_t sum[kRows][2 * kVectors] = {};
  walk_values<8, kVectors>(x, column, next, [&](std::int64_t k, auto value) {
    float16x8_t weight[kRows];
    unrolled<kRows>([&](auto i) { weight[i] = load(p.data + i * p.stride + k); });
    unrolled<8>([&](auto r) {
      unrolled<kVectors>([&](auto v) {
        const float16x8_t y = load(value(r, v));
        unrolled<kRows>([&](auto i) {
          float32x4_t &low = sum[i][2 * v], &high = sum[i][2 * v + 1];
          low = vfmlalq_laneq_low_f16(low, y, weight[i], r);
          high = vfmlalq_laneq_high_f16(high, y, weight[i], r);
        });
      });
    });
  });
  unrolled<kRows>([&](auto i) {
    unrolled<2 * kVectors>([&](auto v) {
      float* to = c + i * c_stride + 4 * v;
      vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum[i][v]));
    });
  });
}

// Blocks of kVectors columns while they fit, then single ones.
template <Ask kAsk, int kRows>
void value_rows(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  constexpr int kVectors = kRows == 4 ? 2 : 4;
  auto next = rows_ahead<kAsk>(x.data + x.rows * x.stride, x);
  std::int64_t j = 0;
  for (; j + 8 * kVectors <= x.columns; j += 8 * kVectors) {
    value_block<kRows, kVectors>(p, x, j, next, c + j, c_stride);
  }
  for (; j < x.columns; j += 8) value_block<kRows, 1>(p, x, j, next, c + j, c_stride);
}

template <Ask kAsk>
void values_ahead(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  for_each_run<kKeysInCache>(p, x, [&](const Left& weights, const Right& run) {
    for_each_group(p.rows, [&](auto rows, std::int64_t i) {
      value_rows<kAsk, decltype(rows)::value>(
          {weights.data + i * weights.stride, weights.stride, rows}, run, c + i * c_stride,
          c_stride);
    });
  });
}

void values(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  const auto far = p.rows == 1 ? values_ahead<Ask::far> : values_ahead<Ask::both>;
  (x.from_memory ? far : values_ahead<Ask::near>)(p, x, c, c_stride);
}

constexpr DecodeEngine kDecode{
    .dtype = DType::f16, .weight_unit = 32768, .scores = scores, .values = values};

}  // namespace
}  // namespace f16_neon

const DecodeEngine* neon_f16_decode() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM) != 0 ? &f16_neon::kDecode : nullptr;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const DecodeEngine* neon_f16_decode() { return nullptr; }

}  // namespace qkv::cpu

#endif
