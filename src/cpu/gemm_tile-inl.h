// C (+)= A B for tiles that fit the cache, in f32. B has its columns in vectors; the elements of A
// are broadcast. Per-target code: included once per SIMD target.
#if defined(QKV_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_GEMM_TILE_INL_H_
#undef QKV_CPU_GEMM_TILE_INL_H_
#else
#define QKV_CPU_GEMM_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A(i, k) = data[i * row + k * step]: rows of A are rows (step 1) or columns (row 1) in memory.
struct Left {
  const float* data;
  std::int64_t row, step;
};
// B(k, j) = data[k * row + j]; vectors may read up to the next multiple of a vector past n.
struct Right {
  const float* data;
  std::int64_t row;
};
struct Product {
  float* data;
  std::int64_t row;
  bool accumulate;  // C += A B, else C = A B
};
struct Extents {
  std::int64_t m, n, k;
};

// Vectors of the register tile, and rows for that many: accumulators + one row of B + one broadcast
// fit the file.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kTileVectors = 4;
constexpr int tile_rows(int vectors) { return vectors == 4 ? 6 : 8; }  // 24 + 4 + 1 of 32
#elif HWY_TARGET == HWY_NEON
inline constexpr int kTileVectors = 4;
constexpr int tile_rows(int) { return 5; }  // 20 + 5 of A + 1 of B of 32
#else
inline constexpr int kTileVectors = 3;
constexpr int tile_rows(int) { return 4; }  // 12 + 3 + 1 of 16
#endif

#if HWY_TARGET == HWY_NEON

// body(0) .. body(kCount - 1) with constant indices: a lane is part of the instruction.
template <int kCount, class Body>
HWY_INLINE void unrolled(Body body) {
  [&]<int... i>(std::integer_sequence<int, i...>) HWY_ATTR __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// Multiplies by lane: a register of A serves four products per vector of B, and no element is
// broadcast. On a Neoverse-V1 20 sums (5 x 4) reach 89 % of its peak and 24 (4 x 6) 78 %.
template <int kRows, int kVectors>
HWY_NOINLINE void multiply_registers(const Left& a, const Right& b, const Product& c,
                                     std::int64_t depth) {
  float32x4_t sum[kRows][kVectors] = {};
  const float *left = a.data, *right = b.data;
  std::int64_t k = 0;
  if (a.step == 1) {  // lanes of A run along k
    for (; k + 4 <= depth; k += 4, left += 4) {
      float32x4_t x[kRows];
      unrolled<kRows>([&](auto i) HWY_ATTR { x[i] = vld1q_f32(left + i * a.row); });
      unrolled<4>([&](auto lane) HWY_ATTR {
        unrolled<kVectors>([&](auto v) HWY_ATTR {
          const float32x4_t y = vld1q_f32(right + 4 * v);
          unrolled<kRows>([&](auto i)
                              HWY_ATTR { sum[i][v] = vfmaq_laneq_f32(sum[i][v], y, x[i], lane); });
        });
        right += b.row;
      });
    }
  } else if (kRows == 4 && a.row == 1) {  // lanes of A are its rows
    for (; k < depth; ++k, left += a.step, right += b.row) {
      const float32x4_t x = vld1q_f32(left);
      unrolled<kVectors>([&](auto v) HWY_ATTR {
        const float32x4_t y = vld1q_f32(right + 4 * v);
        unrolled<kRows>([&](auto i)
                            HWY_ATTR { sum[i][v] = vfmaq_laneq_f32(sum[i][v], y, x, i % 4); });
      });
    }
  }
  for (; k < depth; ++k, left += a.step, right += b.row) {
    unrolled<kVectors>([&](auto v) HWY_ATTR {
      const float32x4_t y = vld1q_f32(right + 4 * v);
      unrolled<kRows>([&](auto i)
                          HWY_ATTR { sum[i][v] = vfmaq_n_f32(sum[i][v], y, left[i * a.row]); });
    });
  }
  float* to = c.data;
  const std::int64_t row = c.row;
  const auto put = [&](auto value) HWY_ATTR __attribute__((always_inline)) {
    unrolled<kRows>([&](auto i) HWY_ATTR {
      unrolled<kVectors>([&](auto v) HWY_ATTR {
        float* at = to + i * row + 4 * v;
        vst1q_f32(at, value(at, sum[i][v]));
      });
    });
  };
  if (c.accumulate) {
    put([](const float* at, float32x4_t x) HWY_ATTR { return vaddq_f32(vld1q_f32(at), x); });
  } else {
    put([](const float*, float32x4_t x) HWY_ATTR { return x; });
  }
}

#else

template <int kRows, int kVectors>
HWY_INLINE void multiply_registers(const Left& a, const Right& b, const Product& c,
                                   std::int64_t depth) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = c.accumulate ? hn::LoadU(d, c.data + i * c.row + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    V right[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b.data + k * b.row + v * lanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V left = hn::Set(d, a.data[i * a.row + k * a.step]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(left, right[v], sum[i][v]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, c.data + i * c.row + v * lanes);
  }
}

#endif

// All rows of one panel of kVectors vectors of columns.
template <int kVectors>
HWY_NOINLINE void multiply_panel(Left a, const Right& b, Product c, std::int64_t rows,
                                 std::int64_t depth) {
  constexpr int kTileRows = tile_rows(kVectors);
  const auto take = [&]<int kRows>(std::integral_constant<int, kRows>) HWY_ATTR {
    multiply_registers<kRows, kVectors>(a, b, c, depth);
    a.data += kRows * a.row;
    c.data += kRows * c.row;
    rows -= kRows;
  };
#if HWY_TARGET == HWY_NEON
  // Fours where lanes of A are rows, and for what fives do not divide: 96 = 16 x 5 + 4 x 4.
  std::int64_t fours = a.step == 1 ? (5 - rows % 5) % 5 : rows / 4;
  while (4 * fours > rows) --fours;
  for (; fours > 0; --fours) take(std::integral_constant<int, 4>());
#endif
  while (rows >= kTileRows) take(std::integral_constant<int, kTileRows>());
  if (kTileRows > 4 && rows >= 4) take(std::integral_constant<int, 4>());
  switch (rows) {
    case 3: return multiply_registers<3, kVectors>(a, b, c, depth);
    case 2: return multiply_registers<2, kVectors>(a, b, c, depth);
    case 1: return multiply_registers<1, kVectors>(a, b, c, depth);
    default: return;
  }
}

template <int kVectors>
HWY_INLINE void multiply_vectors(const Left& a, const Right& b, const Product& c,
                                 const Extents& size, std::int64_t vectors) {
  if (vectors == kVectors) {
    multiply_panel<kVectors>(a, b, c, size.m, size.k);
  } else if constexpr (kVectors > 1) {
    multiply_vectors<kVectors - 1>(a, b, c, size, vectors);
  }
}

// C [m, n] (+)= A [m, k] B [k, n]. B and C must be readable and writable up to n rounded to a
// vector.
HWY_INLINE void multiply(const Left& a, Right b, Product c, const Extents& size) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  std::int64_t vectors = (size.n + lanes - 1) / lanes;
  std::int64_t panels = (vectors + kTileVectors - 1) / kTileVectors;
  for (; panels > 0; --panels) {  // as even as can be: 3 + 3 has more sums in flight than 4 + 2
    const std::int64_t take = (vectors + panels - 1) / panels;
    multiply_vectors<kTileVectors>(a, b, c, size, take);
    vectors -= take;
    b.data += take * lanes;
    c.data += take * lanes;
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
