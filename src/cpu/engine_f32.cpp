// The f32 engine, one source for every SIMD target.
#include "cpu/attention_engine.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine_f32.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/gemm_tile-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

void pack_transposed(const void* source, std::int64_t stride, std::int64_t rows,
                     const TileExtents& size, void* packed) {
  const auto* from = static_cast<const float*>(source);
  auto* to = static_cast<float*>(packed);
  const std::int64_t depth = size.depth, columns = size.columns;
  std::int64_t j = 0;
#if HWY_TARGET == HWY_AVX3
  if (depth % 16 == 0) {
    for (; j + 16 <= rows; j += 16) {
      for (std::int64_t k = 0; k < depth; k += 16) {
        transpose_16x16(from + j * stride + k, stride, to + k * columns + j, columns);
      }
    }
  }
#endif
  for (; j + 4 <= rows; j += 4) {
    const float* r = from + j * stride;
    std::int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; k + 4 <= depth; k += 4) transpose_4x4(r + k, stride, to + k * columns + j, columns);
#endif
    for (; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) to[k * columns + j + i] = r[i * stride + k];
    }
  }
  for (std::int64_t k = 0; j < columns && k < depth; ++k) {
    std::int64_t column = j;
    for (; column < rows; ++column) to[k * columns + column] = from[column * stride + k];
    for (; column < columns; ++column) to[k * columns + column] = 0;
  }
}

void pack(const void* source, std::int64_t stride, std::int64_t rows, const TileExtents& size,
          void* packed) {
  const auto* from = static_cast<const float*>(source);
  auto* to = static_cast<float*>(packed);
  const std::int64_t padded = round_up(size.columns, 16);
  for (std::int64_t k = 0; k < size.depth; ++k, to += padded) {
    std::int64_t j = 0;
    if (k < rows) {
      std::copy_n(from + k * stride, size.columns, to);
      j = size.columns;
    }
    std::fill(to + j, to + padded, 0.0f);
  }
}

void multiply_f32(const void* a, std::int64_t a_stride, const PackedOperand& b, float* c,
                  std::int64_t c_stride, const TileExtents& size, bool accumulate) {
  multiply({static_cast<const float*>(a), a_stride, 1},
           {static_cast<const float*>(b.data),
            b.row_stride != 0 ? b.row_stride : round_up(b.columns, 16)},
           {c, c_stride, accumulate}, {size.rows, size.columns, size.depth});
}

// What a block of queries works with (its scores, a tile of K and of V, its own rows) should stay
// in the first-level cache, or nearly.
inline constexpr std::int64_t kTileRows = HWY_TARGET == HWY_NEON ? 64 : 96, kTileKeys = 96;

const AttentionEngine* engine() {
  static const AttentionEngine instance{.name = "f32",
                                        .operand = DType::f32,
                                        .tile_rows = kTileRows,
                                        .tile_keys = kTileKeys,
                                        .row_multiple = 1,
                                        .depth_multiple = 1,
                                        .column_multiple = 16,
                                        .takes_rows = true,
                                        .pack_transposed = pack_transposed,
                                        .pack = pack,
                                        .multiply = multiply_f32,
                                        .begin = nullptr,
                                        .end = nullptr};
  return &instance;
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(engine);

const AttentionEngine& attention_engine(DType dtype) {
  const AttentionEngine* native = native_bf16_engine();  // also settles the target
  if (dtype == DType::bf16 && native != nullptr) return *native;
  return *HWY_DYNAMIC_DISPATCH(engine)();
}

}  // namespace qkv::cpu
#endif
