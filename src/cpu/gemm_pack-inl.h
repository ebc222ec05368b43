// Operands of a matrix product, from any dtype and strides to what the product reads. Per-target
// code: included once per SIMD target.
#if defined(QKV_CPU_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_GEMM_PACK_INL_H_
#undef QKV_CPU_GEMM_PACK_INL_H_
#else
#define QKV_CPU_GEMM_PACK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/gemm_engine.h"
#include "cpu/gemm_kernel-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/scratch.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows that stand next to each other in memory: element (r, c) = from[r + c * step]. Read along r,
// 16 columns at a time, and turned in registers.
template <class T>
void load_turned(const T* from, std::int64_t step, const TileExtents& size, float* to,
                 std::int64_t to_stride) {
  constexpr std::int64_t kAcross = 16, kAlong = 64;
  HWY_ALIGN float wide[kAcross * kAlong];
  for (std::int64_t c = 0; c < size.columns; c += kAcross) {
    const std::int64_t columns = std::min(kAcross, size.columns - c);
    if constexpr (std::is_same_v<T, float>) {
      transpose_block(from + c * step, step, columns, size.rows, to + c, to_stride);
    } else {
      for (std::int64_t r = 0; r < size.rows; r += kAlong) {
        const std::int64_t rows = std::min(kAlong, size.rows - r);
        for (std::int64_t i = 0; i < columns; ++i) {
          load_row(from + (c + i) * step + r, 1, rows, wide + i * kAlong);
        }
        transpose_block(wide, kAlong, columns, rows, to + r * to_stride + c, to_stride);
      }
    }
  }
}

template <class T>
void load_block_of(const Rows& from, const TileExtents& size, float* to, std::int64_t to_stride) {
  const auto* data = reinterpret_cast<const T*>(from.data);
  if (from.stride == 1 && from.step != 1 && size.rows > 1) {
    return load_turned(data, from.step, size, to, to_stride);
  }
  for (std::int64_t r = 0; r < size.rows; ++r) {
    load_row(data + r * from.stride, from.step, size.columns, to + r * to_stride);
  }
}

// to [rows, columns] = f32 of a block of a tensor.
inline void load_block(const Rows& from, const TileExtents& size, float* to,
                       std::int64_t to_stride) {
  switch (from.dtype) {
    case DType::bf16: return load_block_of<bf16>(from, size, to, to_stride);
    case DType::f16: return load_block_of<f16>(from, size, to, to_stride);
    default: return load_block_of<float>(from, size, to, to_stride);
  }
}

inline void round_rows(float* x, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  Room<bf16, kDepthBlock> room;
  bf16* rounded = room.get();
  for (std::int64_t r = 0; r < rows; ++r, x += stride) {
    store_row(x, columns, {reinterpret_cast<std::byte*>(rounded), DType::bf16, 0, 1}, 0);
    load_row(rounded, 1, columns, x);
  }
}

// Rows of one group, as f32.
inline void pack_left_f32(const Rows& from, const TileExtents& size, const LeftTarget& to,
                          float* data) {
  load_block(from, size, data, to.stride);
  if (to.round && from.dtype != DType::bf16) round_rows(data, to.stride, size.rows, size.columns);
  for (std::int64_t r = 0; r < size.rows; ++r) {
    std::fill(data + r * to.stride + size.columns, data + r * to.stride + to.columns, 0.0f);
  }
}

// The same as bf16.
inline void pack_left_bf16(const Rows& from, const TileExtents& size, const LeftTarget& to,
                           bf16* data) {
  constexpr std::int64_t kRows = 16, kColumns = 256;
  HWY_ALIGN float wide[kRows * kColumns];
  const bool same = from.dtype == DType::bf16 && from.step == 1;
  for (std::int64_t r = 0; r < size.rows; r += kRows) {
    const std::int64_t rows = std::min(kRows, size.rows - r);
    bf16* out = data + r * to.stride;
    for (std::int64_t c = 0; c < size.columns && !same; c += kColumns) {
      const std::int64_t columns = std::min(kColumns, size.columns - c);
      Rows block = from.from(r);
      block.data += c * from.step * static_cast<std::int64_t>(size_of(from.dtype));
      load_block(block, {rows, columns, 0}, wide, kColumns);
      for (std::int64_t i = 0; i < rows; ++i) {
        store_row(wide + i * kColumns, columns,
                  {reinterpret_cast<std::byte*>(out + c), DType::bf16, to.stride, 1}, i);
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      if (same) {
        std::memcpy(out + i * to.stride, from.row(r + i),
                    static_cast<std::size_t>(size.columns) * sizeof(bf16));
      }
      std::fill(out + i * to.stride + size.columns, out + i * to.stride + to.columns, bf16());
    }
  }
}

inline void pack_left_rows(const Source& a, const Window& window, const LeftTarget& to) {
  for (std::int64_t r = 0; r < window.rows;) {
    const std::int64_t row = window.row + r;
    const std::int64_t run = std::min(window.rows - r, a.group - row % a.group);
    const TileExtents size{run, window.columns, 0};
    if (to.dtype == DType::f32) {
      pack_left_f32(a.at(row, window.column), size, to,
                    static_cast<float*>(to.data) + r * to.stride);
    } else {
      pack_left_bf16(a.at(row, window.column), size, to,
                     static_cast<bf16*>(to.data) + r * to.stride);
    }
    r += run;
  }
  const auto item = static_cast<std::int64_t>(size_of(to.dtype));
  auto* data = static_cast<std::byte*>(to.data);
  for (std::int64_t r = window.rows; r < to.rows; ++r) {
    std::fill_n(data + r * to.stride * item, to.columns * item, std::byte{});
  }
}

// Rows as they are, or kLeftTogether of them turned, of which those that are not there are not
// read.
inline void pack_left(const Source& a, const Window& window, const LeftTarget& to) {
  if (to.dtype != DType::f32 || kLeftTogether == 1) return pack_left_rows(a, window, to);
  HWY_ALIGN float rows[kLeftTogether * kLeftStride];
  for (std::int64_t r = 0; r < to.rows; r += kLeftTogether) {
    const std::int64_t count = std::clamp<std::int64_t>(window.rows - r, 0, kLeftTogether);
    pack_left_rows(a, {window.row + r, count, window.column, window.columns},
                   {rows, to.dtype, to.round, kLeftStride, to.columns, count});
    transpose_block(rows, kLeftStride, count, to.columns,
                    static_cast<float*>(to.data) + r * to.stride, kLeftTogether);
  }
}

// One panel: [depth][kPanel], in f32 or as 16 bits again.
inline void pack_panel(const Rows& from, std::int64_t depth, std::int64_t columns, DType dtype,
                       void* to) {
  constexpr std::int64_t kDepth = 64;
  HWY_ALIGN float wide[kDepth * kPanel];
  const bool narrow = dtype != DType::f32;
  const std::int64_t step = narrow ? kDepth : depth;
  for (std::int64_t k = 0; k < depth; k += step) {
    const std::int64_t here = std::min(step, depth - k);
    float* block = narrow ? wide : static_cast<float*>(to);
    load_block(from.from(k), {here, columns, 0}, block, kPanel);
    for (std::int64_t i = 0; columns < kPanel && i < here; ++i) {
      std::fill(block + i * kPanel + columns, block + (i + 1) * kPanel, 0.0f);
    }
    if (narrow) store_row(block, here * kPanel, {static_cast<std::byte*>(to), dtype, kPanel, 1}, k);
  }
}

inline void pack_right(const GemmEngine&, const Source& b, const Window& window,
                       const RightTarget& to) {
  auto* data = static_cast<std::byte*>(to.data);
  const auto stride = to.panel_stride * static_cast<std::int64_t>(size_of(to.dtype));
  for (std::int64_t j = 0; j < window.columns; j += kPanel, data += stride) {
    pack_panel(b.at(window.row, window.column + j), window.rows,
               std::min<std::int64_t>(kPanel, window.columns - j), to.dtype, data);
  }
}

// Panels of 16 bits as panels of f32, one after the other.
inline void widen(const RightBlock& b, std::int64_t depth, std::int64_t panels, float* to) {
  const std::int64_t count = depth * kPanel;
  for (std::int64_t p = 0; p < panels; ++p, to += count) {
    if (b.dtype == DType::bf16) {
      load_row(static_cast<const bf16*>(b.data) + p * b.panel_stride, 1, count, to);
    } else {
      load_row(static_cast<const f16*>(b.data) + p * b.panel_stride, 1, count, to);
    }
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
