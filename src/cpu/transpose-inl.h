// Transposing blocks of f32 in registers. Per-target code: included once per SIMD target.
#if defined(QKV_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_TRANSPOSE_INL_H_
#undef QKV_CPU_TRANSPOSE_INL_H_
#else
#define QKV_CPU_TRANSPOSE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_4x4(const float* from, std::int64_t from_stride, float* to,
                              std::int64_t to_stride) {
  const hn::FixedTag<float, 4> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + from_stride);
  const auto e = hn::LoadU(d, from + 2 * from_stride), f = hn::LoadU(d, from + 3 * from_stride);
  const auto ae_lo = hn::InterleaveLower(d, a, e), ae_hi = hn::InterleaveUpper(d, a, e);
  const auto bf_lo = hn::InterleaveLower(d, b, f), bf_hi = hn::InterleaveUpper(d, b, f);
  hn::StoreU(hn::InterleaveLower(d, ae_lo, bf_lo), d, to);
  hn::StoreU(hn::InterleaveUpper(d, ae_lo, bf_lo), d, to + to_stride);
  hn::StoreU(hn::InterleaveLower(d, ae_hi, bf_hi), d, to + 2 * to_stride);
  hn::StoreU(hn::InterleaveUpper(d, ae_hi, bf_hi), d, to + 3 * to_stride);
}
#endif

#if HWY_TARGET == HWY_AVX3
// The same for 16 x 16, in four rounds of pairing: whole cache lines are stored.
HWY_INLINE void transpose_16x16(const float* from, std::int64_t from_stride, float* to,
                                std::int64_t to_stride) {
  __m512 r[16], t[16];
  HWY_UNROLL(16)
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_stride);
  HWY_UNROLL(8)
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  HWY_UNROLL(4)
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  HWY_UNROLL(2)
  for (int i = 0; i < 16; i += 8) {
    HWY_UNROLL(4)
    for (int j = i; j < i + 4; ++j) {
      t[j] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0x88);
      t[j + 4] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0xdd);
    }
  }
  HWY_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
    _mm512_storeu_ps(to + j * to_stride, _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88));
    _mm512_storeu_ps(to + (j + 8) * to_stride, _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd));
  }
}
#endif

// to[j][i] = from[i][j] for any extents.
inline void transpose_block(const float* from, std::int64_t from_stride, std::int64_t rows,
                            std::int64_t columns, float* to, std::int64_t to_stride) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX3
  const std::int64_t wide = columns / 16 * 16;
  for (; i + 16 <= rows; i += 16) {
    const float* source = from + i * from_stride;
    std::int64_t j = 0;
    for (; j < wide; j += 16) {
      transpose_16x16(source + j, from_stride, to + j * to_stride + i, to_stride);
    }
    for (; j < columns; ++j) {
      for (int r = 0; r < 16; ++r) to[j * to_stride + i + r] = source[r * from_stride + j];
    }
  }
#endif
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= rows; i += 4) {
    const float* source = from + i * from_stride;
    std::int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      transpose_4x4(source + j, from_stride, to + j * to_stride + i, to_stride);
    }
    for (; j < columns; ++j) {
      for (int r = 0; r < 4; ++r) to[j * to_stride + i + r] = source[r * from_stride + j];
    }
  }
#endif
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
