// The f32 engine, one source for every SIMD target.
#include <limits>

#include "cpu/attention_engine.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine_f32.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/gemm_panels-inl.h"
#include "cpu/gemm_tile-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

void pack_transposed(const void* source, std::int64_t stride, std::int64_t rows,
                     const TileExtents& size, void* packed) {
  pack_columns(static_cast<const float*>(source), stride, rows, size.columns, size.depth,
               static_cast<float*>(packed));
}

// `count` elements, and zeros up to `padded`, whole vectors.
HWY_INLINE void copy_row(const float* from, std::int64_t count, float* to, std::int64_t padded) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = from[i];
  for (; i < padded; ++i) to[i] = 0;
}

void pack(const void* source, std::int64_t stride, std::int64_t rows, const TileExtents& size,
          void* packed) {
  each_panel(round_up(size.columns, 16), size.depth, static_cast<float*>(packed),
             [&](std::int64_t first, std::int64_t columns, float* to) HWY_ATTR {
               const auto* from = static_cast<const float*>(source) + first;
               const std::int64_t have = std::clamp<std::int64_t>(size.columns - first, 0, columns);
               for (std::int64_t k = 0; k < size.depth; ++k, to += columns) {
                 copy_row(from + k * stride, k < rows ? have : 0, to, columns);
               }
             });
}

// [depth][row].
void turn(const void* rows, std::int64_t stride, std::int64_t depth, void* to) {
  transpose_block(static_cast<const float*>(rows), stride, kRowsTogether, depth,
                  static_cast<float*>(to), kRowsTogether);
}

void multiply_f32(const LeftOperand& a, const PackedOperand& b, float* c, std::int64_t c_stride,
                  const TileExtents& size, bool accumulate) {
  const std::int64_t columns = round_up(b.columns, 16);
  multiply({static_cast<const float*>(a.data), a.stride, a.turned ? kRowsTogether : 1},
           b.row_stride != 0 ? Right{static_cast<const float*>(b.data), b.row_stride}
                             : packed_columns(static_cast<const float*>(b.data), columns, b.depth),
           {c, c_stride, accumulate}, {size.rows, size.columns, size.depth});
}

// What a block of queries works with should stay in the first-level cache, or nearly: its scores,
// its own rows and its sums, and where a machine was seen to stream tiles of K and V from the
// second level without loss (a Neoverse-V1), nothing else.
inline constexpr std::int64_t kTileRows = kPanels ? 32 : 96, kTileKeys = kPanels ? 128 : 96;

// Where packing is only a copy, it never pays.
inline constexpr std::int64_t kUsesAsRows =
    kPanels ? 256 : std::numeric_limits<std::int64_t>::max();

const AttentionEngine* engine() {
  static const AttentionEngine instance{.name = "f32",
                                        .operand = DType::f32,
                                        .tile_rows = kTileRows,
                                        .tile_keys = kTileKeys,
                                        .row_multiple = 1,
                                        .depth_multiple = 1,
                                        .column_multiple = 16,
                                        .rows_together = kRowsTogether,
                                        .uses_as_rows = kUsesAsRows,
                                        .pack_transposed = pack_transposed,
                                        .pack = pack,
                                        .turn = kRowsTogether > 1 ? turn : nullptr,
                                        .multiply = multiply_f32,
                                        .store_scaled = nullptr,
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
