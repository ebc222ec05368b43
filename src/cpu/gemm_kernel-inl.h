// C (+)= A B for a block of depth, in f32: A by rows a constant stride apart (on Arm kLeftTogether
// of them turned, [depth][row]), B in panels. Per-target code: included once per SIMD target.
//
// A sum runs over a block of depth in order, and blocks are added in order, whatever the number of
// rows: a row of the result does not depend on the rows it was computed with.
#if defined(QKV_CPU_GEMM_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_GEMM_KERNEL_INL_H_
#undef QKV_CPU_GEMM_KERNEL_INL_H_
#else
#define QKV_CPU_GEMM_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cpu/gemm_engine.h"
#include "cpu/gemm_finish-inl.h"
#include "cpu/gemm_tile-inl.h"
#include "cpu/prefetch.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A panel of B of this depth is half of a first-level cache (AVX-512: 32 of 48 KiB; Arm: 36 of 64).
inline constexpr int kDepthBlock = HWY_TARGET == HWY_NEON ? 384 : 256;
// The stride of A. A constant, so that rows are displacements of one pointer; odd in cache lines,
// so that rows do not share sets. Rows that are turned lie together, and all of A is one stream.
inline constexpr int kLeftStride = kDepthBlock + (HWY_TARGET == HWY_NEON ? 0 : 16);

// Sums of kMostRows x kVectors, a row of B and one of A fit the register file, and cover the
// latency of a multiply-add.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kMostRows = 12, kVectors = 2, kLanes = 16;  // 24 + 2 + 1 of 32
#elif HWY_TARGET == HWY_NEON
inline constexpr int kMostRows = 4, kVectors = 6, kLanes = 4;  // 24 + 1 + 1 of 32
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kMostRows = 6, kVectors = 2, kLanes = 8;  // 12 + 2 + 1 of 16
#elif HWY_TARGET == HWY_SCALAR
inline constexpr int kMostRows = 4, kVectors = 4, kLanes = 1;
#else
inline constexpr int kMostRows = 6, kVectors = 2, kLanes = 4;
#endif
inline constexpr int kPanel = kVectors * kLanes;
// Arm multiplies by a lane: there lanes are rows of A, and a step of the depth is one of these.
#if HWY_TARGET == HWY_NEON
inline constexpr int kLeftTogether = kMostRows, kRowStep = 1, kDepthStep = kLeftTogether;
#else
inline constexpr int kLeftTogether = 1, kRowStep = kLeftStride, kDepthStep = 1;
#endif
// B of 16 bits is widened in registers when it passes once, and in memory for more rows.
inline constexpr int kNarrowRows = kMostRows;

template <class T>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> load_right(const T* from) {
  const hn::ScalableTag<float> d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::Load(d, from);
  } else if constexpr (std::is_same_v<T, bf16> || kHalfByInstruction) {
    using Lane = std::conditional_t<std::is_same_v<T, bf16>, hwy::bfloat16_t, hwy::float16_t>;
    const hn::Rebind<Lane, decltype(d)> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const Lane*>(from)));
  } else {
    HWY_ALIGN float wide[kLanes];
    for (int i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(from[i]);
    return hn::Load(d, wide);
  }
}

// With few rows B passes once, at the speed of memory: lines are asked for this many bytes ahead,
// across the pages at which the hardware stops. Not on Arm: a Neoverse-V1 that is asked reads 29
// GB/s, left alone 50, and 66 when four streams are read at once.
inline constexpr int kStreamRows = HWY_TARGET == HWY_NEON ? 0 : 8, kAhead = 4096;
// There these are streams through parts of B far apart, so that they are long.
inline constexpr int kLongStreamRows = HWY_TARGET == HWY_NEON ? 2 : 0;

#if HWY_TARGET == HWY_NEON

template <int kRows, class T>
HWY_NOINLINE void multiply_rows(const float* left, const T* right, std::int64_t depth, float* c,
                                std::int64_t c_stride, bool accumulate) {
  constexpr int kParts = (kRows + 3) / 4;
  float32x4_t sum[kRows][kVectors];
  unrolled<kRows>([&](auto i) QKV_UNROLLED {
    unrolled<kVectors>([&](auto v) QKV_UNROLLED { sum[i][v] = vdupq_n_f32(0); });
  });
  for (std::int64_t k = 0; k < depth; ++k, left += kDepthStep, right += kPanel) {
    float32x4_t x[kParts];
    unrolled<kParts>([&](auto part) QKV_UNROLLED { x[part] = vld1q_f32(left + 4 * part); });
    unrolled<kVectors>([&](auto v) QKV_UNROLLED {
      const float32x4_t y = load_right(right + 4 * v).raw;
      unrolled<kRows>(
          [&](auto i) QKV_UNROLLED { sum[i][v] = vfmaq_laneq_f32(sum[i][v], y, x[i / 4], i % 4); });
    });
  }
  unrolled<kRows>([&](auto i) QKV_UNROLLED {
    unrolled<kVectors>([&](auto v) QKV_UNROLLED {
      float* to = c + i * c_stride + 4 * v;
      vst1q_f32(to, accumulate ? vaddq_f32(vld1q_f32(to), sum[i][v]) : sum[i][v]);
    });
  });
}

#else

template <int kRows, class T>
HWY_NOINLINE void multiply_rows(const float* left, const T* right, std::int64_t depth, float* c,
                                std::int64_t c_stride, bool accumulate) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V sum[kRows][kVectors];
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < depth; ++k, ++left, right += kPanel) {
    V y[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      y[v] = load_right(right + v * kLanes);
      if (kRows <= kStreamRows) {
        __builtin_prefetch(right + v * kLanes + kAhead / sizeof(T));
      }
    }
    HWY_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const V x = hn::Set(d, left[i * kLeftStride]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(x, y[v], sum[i][v]);
    }
  }
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + i * c_stride + v * kLanes;
      hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, to), sum[i][v]) : sum[i][v], d, to);
    }
  }
}

#endif

// Few rows and several panels at once: as many streams from memory, which together are faster than
// one. The order of every sum is that of multiply_rows.
inline constexpr int kMostStreams = 4, kMostSums = kMostRows * kVectors;
constexpr int streams_of(int rows) {
  const int fit = kMostSums / (rows * kVectors);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}
inline constexpr int kFewRows = std::max(1, kMostRows / 2);  // for two streams or more

template <int kRows, class T>
HWY_NOINLINE void multiply_streams(const float* left, const T* right, std::int64_t panel_stride,
                                   std::int64_t depth, float* c, std::int64_t c_stride,
                                   bool accumulate) {
  constexpr int kStreams = streams_of(kRows);
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V sum[kStreams][kVectors][kRows];
  HWY_UNROLL(4)
  for (int s = 0; s < kStreams; ++s) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) sum[s][v][i] = hn::Zero(d);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k, left += kDepthStep, right += kPanel) {
    V x[kRows];
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) x[i] = hn::Set(d, left[i * kRowStep]);
    HWY_UNROLL(4)
    for (int s = 0; s < kStreams; ++s) {
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        const T* from = right + s * panel_stride + v * kLanes;
        const V y = load_right(from);
        if (kRows <= kStreamRows) __builtin_prefetch(from + kAhead / sizeof(T));
        HWY_UNROLL(8)
        for (int i = 0; i < kRows; ++i) sum[s][v][i] = hn::MulAdd(x[i], y, sum[s][v][i]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int s = 0; s < kStreams; ++s) {
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        float* to = c + i * c_stride + s * kPanel + v * kLanes;
        hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, to), sum[s][v][i]) : sum[s][v][i], d, to);
      }
    }
  }
}

template <class T>
using MultiplyRows = void (*)(const float*, const T*, std::int64_t, float*, std::int64_t, bool);

// The product of 1, 2, ... rows.
template <class T, int kCount>
struct RowTable {
  MultiplyRows<T> of[kCount];
  constexpr RowTable() : RowTable(std::make_integer_sequence<int, kCount>()) {}

 private:
  template <int... i>
  constexpr explicit RowTable(std::integer_sequence<int, i...>) : of{multiply_rows<i + 1, T>...} {}
};

// What the kernel will need next: a part of the panel that follows, the rows of A below when they
// are read for the first time, and the lines of C and y it will write.
struct Lookahead {
  const std::byte* panel;
  std::int64_t panel_bytes, blocks;
  bool first_panel;

  HWY_INLINE void operator()(const BlockProduct& p, std::int64_t block, std::int64_t row,
                             std::int64_t rows, std::int64_t column) const {
    prefetch_later(panel, panel_bytes * block / blocks, panel_bytes * (block + 1) / blocks);
    if (first_panel && row + rows < p.size.rows) {
      const auto* left = static_cast<const float*>(p.a);
      prefetch_later(left + (row + rows) * kLeftStride, 0, rows * kLeftStride * 4);
    }
    if (p.accumulate || p.finish == nullptr) {
      prefetch_to_write(p.c + row * p.c_stride + column, p.c_stride * 4, rows, kPanel * 4);
    }
    if (p.finish != nullptr) {
      const Finish at = p.finish->at(row, column);
      const auto width = static_cast<std::int64_t>(size_of(at.y.dtype));
      prefetch_to_write(at.y.data, at.y.stride * width, rows, kPanel * width);
    }
  }
};

template <class T, int kCount>
void multiply_panels(const BlockProduct& p) {
  static constexpr RowTable<T, kCount> kTable;
  HWY_ALIGN float tile[kCount * kPanel];
  const bool once = p.finish != nullptr && !p.accumulate;  // C need not be kept
  const auto* a = static_cast<const float*>(p.a);
  const auto* right = static_cast<const T*>(p.b.data);
  const std::int64_t depth = p.size.depth, blocks = (p.size.rows + kCount - 1) / kCount;
  for (std::int64_t j = 0; j < p.size.columns; j += kPanel, right += p.b.panel_stride) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, p.size.columns - j);
    // After the last panel comes the next block of depth of the first.
    const T* next = j + kPanel < p.size.columns ? right + p.b.panel_stride
                                                : static_cast<const T*>(p.b.data) + depth * kPanel;
    const Lookahead look{reinterpret_cast<const std::byte*>(next),
                         static_cast<std::int64_t>(sizeof(T)) * depth * kPanel, blocks, j == 0};
    std::int64_t row = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t rows =
          kLeftTogether > 1 ? std::min<std::int64_t>(kCount, p.size.rows - row)
                            : (p.size.rows - row + blocks - block - 1) / (blocks - block);  // even
      float* to = once ? tile : p.c + row * p.c_stride + j;
      const std::int64_t stride = once ? kPanel : p.c_stride;
      if (blocks > 1) look(p, block, row, rows, j);
      kTable.of[rows - 1](a + row * kLeftStride, right, depth, to, stride, p.accumulate);
      if (p.finish != nullptr) finish_rows(to, stride, rows, columns, p.finish->at(row, j));
      row += rows;
    }
  }
}

// All columns of a block that has kRows rows (or fewer: counted down).
template <class T, int kRows>
void multiply_few(const BlockProduct& p) {
  if constexpr (kRows > 1) {
    if (p.size.rows < kRows) return multiply_few<T, kRows - 1>(p);
  }
  constexpr int kStreams = streams_of(kRows);
  const auto* left = static_cast<const float*>(p.a);
  const auto* right = static_cast<const T*>(p.b.data);
  std::int64_t panels = (p.size.columns + kPanel - 1) / kPanel;
  for (float* c = p.c; panels > 0;) {
    const std::int64_t take = panels >= kStreams ? kStreams : 1;
    if (take > 1) {
      multiply_streams<kRows>(left, right, p.b.panel_stride, p.size.depth, c, p.c_stride,
                              p.accumulate);
    } else {
      multiply_rows<kRows>(left, right, p.size.depth, c, p.c_stride, p.accumulate);
    }
    c += take * kPanel;
    right += take * p.b.panel_stride;
    panels -= take;
  }
  if (p.finish == nullptr) return;
  for (std::int64_t j = 0; j < p.size.columns; j += kPanel) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, p.size.columns - j);
    finish_rows(p.c + j, p.c_stride, kRows, columns, p.finish->at(0, j));
  }
}

template <class T>
void multiply_block(const BlockProduct& p) {
  return p.size.rows <= kFewRows ? multiply_few<T, kFewRows>(p) : multiply_panels<T, kMostRows>(p);
}

inline void multiply_f32(const GemmEngine&, const BlockProduct& p) {
  switch (p.b.dtype) {
    case DType::bf16: return multiply_block<bf16>(p);
    case DType::f16: return multiply_block<f16>(p);
    default: return multiply_block<float>(p);
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
