// Right operands of gemm_tile-inl.h, packed as it reads them best. Per-target code: included once
// per SIMD target.
#if defined(QKV_CPU_GEMM_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_GEMM_PANELS_INL_H_
#undef QKV_CPU_GEMM_PANELS_INL_H_
#else
#define QKV_CPU_GEMM_PANELS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/gemm_tile-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// On Arm packed columns lie in panels, as the product takes them: what it reads is one stream.
inline constexpr bool kPanels = HWY_TARGET == HWY_NEON;

// Calls body(first column, columns, where they go) for each panel of B [depth, columns].
template <class Body>
void each_panel(std::int64_t columns, std::int64_t depth, float* to, Body body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  for (std::int64_t j = 0; j < columns;) {
    const std::int64_t take = kPanels ? panel_vectors((columns - j) / lanes) * lanes : columns;
    body(j, take, to + j * depth);
    j += take;
  }
}

// B(k, j) = from[j][k] for `rows` of the columns, and 0 for the others.
inline void pack_columns(const float* from, std::int64_t stride, std::int64_t rows,
                         std::int64_t columns, std::int64_t depth, float* to) {
  each_panel(columns, depth, to,
             [&](std::int64_t first, std::int64_t width, float* panel) HWY_ATTR {
               const std::int64_t count = std::clamp<std::int64_t>(rows - first, 0, width);
               transpose_block(from + first * stride, stride, count, depth, panel, width);
               for (std::int64_t k = 0; count < width && k < depth; ++k) {
                 std::fill(panel + k * width + count, panel + (k + 1) * width, 0.0f);
               }
             });
}

// What pack_columns packed.
inline Right packed_columns(const float* data, std::int64_t columns, std::int64_t depth) {
  return {data, kPanels ? 0 : columns, columns, depth};
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
