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

// A(i, k) = data[i * row + k * step]: rows of A are rows (step 1) or columns (row 1) in memory. On
// Arm they may be turned, kRowsTogether at a time: each such group [row][kRowsTogether], where row
// is the depth and step kRowsTogether.
struct Left {
  const float* data;
  std::int64_t row, step;
};
// B(k, j) = data[k * row + j]; vectors may read up to the next multiple of a vector past n. Or (row
// 0) `columns` of them in panels as multiply takes them, each [depth][columns of the panel].
struct Right {
  const float* data;
  std::int64_t row;
  std::int64_t columns = 0, depth = 0;
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
inline constexpr int kTileVectors = 4, kRowsTogether = 1;
constexpr int tile_rows(int vectors) { return vectors == 4 ? 6 : 8; }  // 24 + 4 + 1 of 32
#elif HWY_TARGET == HWY_NEON
inline constexpr int kTileVectors = 6, kRowsTogether = 4;
constexpr int tile_rows(int) { return 4; }  // 24 + 4 of A + 1 of B of 32
#else
inline constexpr int kTileVectors = 3, kRowsTogether = 1;
constexpr int tile_rows(int) { return 4; }  // 12 + 3 + 1 of 16
#endif

#if HWY_TARGET == HWY_NEON

// A body for unrolled, inlined before the compiler looks for what can stay in registers.
#ifndef QKV_UNROLLED
#define QKV_UNROLLED HWY_ATTR __attribute__((always_inline))
#endif

// body(0) .. body(kCount - 1) with constant indices: a lane is part of the instruction.
template <int kCount, class Body>
HWY_INLINE void unrolled(Body body) {
  [&]<int... i>(std::integer_sequence<int, i...>) HWY_ATTR __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// The instructions of the loops below, as assembly because their order decides (74 or 65
// GFLOP/s a core in attention on a Neoverse-V1) and a compiler has its own. Best is a vector of B
// just before the products that need it, and as few different registers as can be in products that
// follow each other: so the same vector of B, and if rows of A are lanes the same one of A.
HWY_INLINE float32x4_t load_in_order(const float* from) {
  float32x4_t x;
  asm volatile("ldr %q0, %1" : "=w"(x) : "m"(*reinterpret_cast<const float(*)[4]>(from)));
  return x;
}
HWY_INLINE void advance_in_order(const float*& x, std::int64_t bytes) {
  asm volatile("add %0, %0, %1" : "+r"(x) : "rI"(bytes));
}
// Not a copy of another zero, which would take a unit that multiplies.
HWY_INLINE float32x4_t zero_in_order() {
  float32x4_t x;
  asm volatile("movi %0.2d, #0" : "=w"(x));
  return x;
}
template <int kLane>
HWY_INLINE void add_product_in_order(float32x4_t& sum, float32x4_t y, float32x4_t x) {
  asm volatile("fmla %0.4s, %1.4s, %2.s[%c3]" : "+w"(sum) : "w"(y), "w"(x), "i"(kLane));
}

// Multiplies by lane: a register of A serves four products per vector of B, and no element is
// broadcast. Sums of 4 x 24 reach 98 % of a Neoverse-V1's peak where lanes are rows and 95 % where
// they run along the depth, of 4 x 20 98 % either way: there the next registers of A come while
// these are multiplied. Inlined, a tile's stores run beside the next one's first products.
template <int kRows, int kVectors>
HWY_INLINE void multiply_registers(const Left& a, const Right& b, const Product& c,
                                   std::int64_t depth) {
  float32x4_t sum[kRows][kVectors];
  const auto each_sum = [&](auto body) QKV_UNROLLED {
    unrolled<kRows>([&](auto i) QKV_UNROLLED {
      unrolled<kVectors>([&](auto v) QKV_UNROLLED { body(sum[i][v], c.data + i * c.row + 4 * v); });
    });
  };
  each_sum([](float32x4_t& x, const float*) QKV_UNROLLED { x = zero_in_order(); });
  const float *left = a.data, *right = b.data;
  const std::int64_t step = 4 * a.step, right_step = 4 * b.row;
  if (a.step != 1) {  // lanes of A are rows, of which there are whole vectors
    for (std::int64_t k = 0; k < depth; ++k) {
      const float32x4_t x = load_in_order(left);
      advance_in_order(left, step);
      unrolled<kVectors>([&](auto v) QKV_UNROLLED {
        const float32x4_t y = load_in_order(right + 4 * v);
        if constexpr (v == kVectors - 1) advance_in_order(right, right_step);
        unrolled<kRows>([&](auto i) QKV_UNROLLED { add_product_in_order<i>(sum[i][v], y, x); });
      });
    }
  } else {  // lanes of A run along the depth
    const float* rows[kRows];
    unrolled<kRows>([&](auto i) QKV_UNROLLED { rows[i] = left + i * a.row; });
    const auto load_row = [&](auto i) QKV_UNROLLED {
      const float32x4_t x = load_in_order(rows[i]);
      advance_in_order(rows[i], 16);
      return x;
    };
    // Four of the depth; beside(0) .. beside(3) among them.
    const auto add_four = [&](const float32x4_t(&x)[kRows], auto beside) QKV_UNROLLED {
      unrolled<4>([&](auto lane) QKV_UNROLLED {
        unrolled<kVectors>([&](auto v) QKV_UNROLLED {
          const float32x4_t y = load_in_order(right + 4 * v);
          if constexpr (v == kVectors - 1) advance_in_order(right, right_step);
          unrolled<kRows>([&](auto i)
                              QKV_UNROLLED { add_product_in_order<lane>(sum[i][v], y, x[i]); });
          if constexpr (v == kVectors / 2) beside(lane);
        });
      });
    };
    const auto nothing = [](auto) QKV_UNROLLED {};
    std::int64_t k = 0;
    if (constexpr bool kHasRoom = kRows * (kVectors + 2) < 32; kHasRoom && depth >= 12) {
      float32x4_t x[kRows], next[kRows];
      const auto load_into = [&](float32x4_t(&to)[kRows]) QKV_UNROLLED {
        return [&](auto i) QKV_UNROLLED {
          if constexpr (i < kRows) to[i] = load_row(i);
        };
      };
      unrolled<kRows>(load_into(x));
      for (; k + 12 <= depth; k += 8) {
        add_four(x, load_into(next));
        add_four(next, load_into(x));
      }
      add_four(x, nothing);
      k += 4;
    }
    for (; k + 4 <= depth; k += 4) {
      float32x4_t x[kRows];
      unrolled<kRows>([&](auto i) QKV_UNROLLED { x[i] = load_row(i); });
      add_four(x, nothing);
    }
    for (; k < depth; ++k, right += b.row) {
      unrolled<kVectors>([&](auto v) QKV_UNROLLED {
        const float32x4_t y = vld1q_f32(right + 4 * v);
        unrolled<kRows>([&](auto i)
                            QKV_UNROLLED { sum[i][v] = vfmaq_n_f32(sum[i][v], y, *rows[i]); });
      });
      unrolled<kRows>([&](auto i) QKV_UNROLLED { ++rows[i]; });
    }
  }
  if (c.accumulate) {
    each_sum([](float32x4_t x, float* at)
                 QKV_UNROLLED { vst1q_f32(at, vaddq_f32(vld1q_f32(at), x)); });
  } else {
    each_sum([](float32x4_t x, float* at) QKV_UNROLLED { vst1q_f32(at, x); });
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

// Vectors of the next panel, of `vectors` that are left: panels as even as can be, because 3 + 3
// has more sums in flight than 4 + 2.
constexpr std::int64_t panel_vectors(std::int64_t vectors) {
  const std::int64_t panels = (vectors + kTileVectors - 1) / kTileVectors;
  return (vectors + panels - 1) / panels;
}

// C [m, n] (+)= A [m, k] B [k, n]. B and C must be readable and writable up to n rounded to a
// vector.
HWY_INLINE void multiply(const Left& a, Right b, Product c, const Extents& size) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const bool in_panels = b.row == 0;
  std::int64_t wanted = (size.n + lanes - 1) / lanes;
  std::int64_t vectors = in_panels ? b.columns / lanes : wanted;
  while (wanted > 0) {
    const std::int64_t take = panel_vectors(vectors);
    if (in_panels) b.row = take * lanes;
    multiply_vectors<kTileVectors>(a, b, c, size, std::min(take, wanted));
    vectors -= take;
    wanted -= take;
    b.data += take * lanes * (in_panels ? b.depth : 1);
    c.data += take * lanes;
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
