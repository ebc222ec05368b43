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

// Rows and vectors of the register tile: accumulators + one row of B + one broadcast fit the file.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kTileRows = 8, kTileVectors = 3;  // 24 + 3 + 1 of 32
#elif HWY_TARGET == HWY_NEON
inline constexpr int kTileRows = 8, kTileVectors = 2;  // 16 + 2 + 8 of 32
#else
inline constexpr int kTileRows = 4, kTileVectors = 3;  // 12 + 3 + 1 of 16
#endif

// The pragmas name the largest extents: GCC 12 takes only literals there.
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
  std::int64_t k = 0;
#if HWY_TARGET == HWY_NEON
  // Four steps at once where A is contiguous along them: one load feeds four multiplies by lane.
  if (a.step == 1) {
    for (; k + 4 <= depth; k += 4) {
      V left[kRows];
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) left[i] = hn::LoadU(d, a.data + i * a.row + k);
      const auto step = [&](auto lane) HWY_ATTR {
        constexpr int kLane = decltype(lane)::value;
        V right[kVectors];
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          right[v] = hn::LoadU(d, b.data + (k + kLane) * b.row + v * lanes);
        }
        HWY_UNROLL(8)
        for (int i = 0; i < kRows; ++i) {
          HWY_UNROLL(4)
          for (int v = 0; v < kVectors; ++v) {
            sum[i][v] = V{vfmaq_laneq_f32(sum[i][v].raw, right[v].raw, left[i].raw, kLane)};
          }
        }
      };
      step(std::integral_constant<int, 0>());
      step(std::integral_constant<int, 1>());
      step(std::integral_constant<int, 2>());
      step(std::integral_constant<int, 3>());
    }
  }
#endif
  for (; k < depth; ++k) {
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

// All rows of one panel of kVectors vectors of columns.
template <int kVectors>
HWY_NOINLINE void multiply_panel(Left a, const Right& b, Product c, std::int64_t rows,
                                 std::int64_t depth) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    multiply_registers<kTileRows, kVectors>(a, b, c, depth);
    a.data += kTileRows * a.row;
    c.data += kTileRows * c.row;
  }
  if (kTileRows > 4 && rows >= 4) {
    multiply_registers<4, kVectors>(a, b, c, depth);
    a.data += 4 * a.row;
    c.data += 4 * c.row;
    rows -= 4;
  }
  switch (rows) {
    case 3: return multiply_registers<3, kVectors>(a, b, c, depth);
    case 2: return multiply_registers<2, kVectors>(a, b, c, depth);
    case 1: return multiply_registers<1, kVectors>(a, b, c, depth);
    default: return;
  }
}

// C [m, n] (+)= A [m, k] B [k, n]. B and C must be readable and writable up to n rounded to a
// vector.
HWY_INLINE void multiply(const Left& a, Right b, Product c, const Extents& size) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t vectors = (size.n + lanes - 1) / lanes;
  while (vectors > 0) {
    // 4 = 2 + 2 keeps more sums in flight than 3 + 1.
    const std::int64_t take = vectors == 4 && kTileVectors == 3
                                  ? 2
                                  : std::min<std::int64_t>(vectors, kTileVectors);
    if (take == kTileVectors) {
      multiply_panel<kTileVectors>(a, b, c, size.m, size.k);
    } else if (take == 2) {
      multiply_panel<2>(a, b, c, size.m, size.k);
    } else {
      multiply_panel<1>(a, b, c, size.m, size.k);
    }
    vectors -= take;
    b.data += take * lanes;
    c.data += take * lanes;
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
