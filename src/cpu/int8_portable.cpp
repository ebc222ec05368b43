// The int8 engine that every target has: bytes widened to 16 bits, whose products are added in
// pairs. A panel is four columns of the weight, each a run along the depth.
#include <algorithm>
#include <cstring>

#include "cpu/int8_engine.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/int8_portable.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kColumns = 4;

// sums[j] = a . column j, for the four columns of a panel; `count` is a multiple of 32.
HWY_INLINE void dot_columns(const std::int8_t* a, const std::int8_t* b, std::int64_t stride,
                            std::int64_t count, std::int32_t* sums) {
  const hn::CappedTag<std::int16_t, 32> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  const hn::Rebind<std::int8_t, decltype(d16)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d16));
  hn::Vec<decltype(d32)> sum[kColumns], other[kColumns];
  HWY_UNROLL(4)
  for (int j = 0; j < kColumns; ++j) sum[j] = other[j] = hn::Zero(d32);
  for (std::int64_t k = 0; k < count; k += lanes) {
    const auto x = hn::PromoteTo(d16, hn::LoadU(d8, a + k));
    HWY_UNROLL(4)
    for (int j = 0; j < kColumns; ++j) {
      const auto y = hn::PromoteTo(d16, hn::LoadU(d8, b + j * stride + k));
      sum[j] = hn::ReorderWidenMulAccumulate(d32, x, y, sum[j], other[j]);
    }
  }
  HWY_UNROLL(4)
  for (int j = 0; j < kColumns; ++j) {
    sums[j] = hn::GetLane(hn::SumOfLanes(d32, hn::Add(sum[j], other[j])));
  }
}

void multiply_kernel(const Int8Block& p) {
  for (std::int64_t j = 0; j < p.columns; j += kColumns) {
    const auto* panel = reinterpret_cast<const std::int8_t*>(p.b) + j / kColumns * p.panel_bytes;
    for (std::int64_t i = 0; i < p.rows; ++i) {
      float total[kColumns] = {};
      for (std::int64_t g = 0; g < p.size.groups; ++g) {
        const std::int64_t k = g * p.size.group;
        std::int32_t sums[kColumns];
        dot_columns(p.a + i * p.a_stride + k, panel + k, p.size.depth,
                    std::min(p.size.group, p.size.depth - k), sums);
        const float* scale = p.scale + (j / kColumns * p.size.groups + g) * kColumns;
        const float row = p.a_scale[i * p.size.groups + g];
        for (int c = 0; c < kColumns; ++c) total[c] += static_cast<float>(sums[c]) * row * scale[c];
      }
      for (int c = 0; c < kColumns; ++c) {
        p.c[i * p.c_stride + j + c] = total[c];
      }
    }
  }
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(multiply_kernel);

namespace {

void pack(const Rows& from, std::int64_t inputs, std::int64_t columns, const Int8Depth& size,
          std::byte* panel) {
  constexpr std::int64_t kColumns = 4;
  std::memset(panel, 0, static_cast<std::size_t>(size.depth * kColumns));
  for (std::int64_t j = 0; j < columns; ++j) {
    const std::byte* column = from.data + j * from.step;
    std::byte* to = panel + j * size.depth;
    for (std::int64_t k = 0; k < inputs; ++k) to[k] = column[k * from.stride];
  }
}

void multiply(const Int8Block& block) { HWY_DYNAMIC_DISPATCH(multiply_kernel)(block); }

constexpr Int8Engine kEngine{.name = "portable",
                             .panel = 4,
                             .row_multiple = 1,
                             .tile_rows = 32,
                             .tile_columns = 64,
                             .stream_columns = 64,
                             .single_columns = 64,
                             .arrange = nullptr,
                             .pack = pack,
                             .multiply = multiply,
                             .begin = nullptr,
                             .end = nullptr};

}  // namespace

const Int8Engine& portable_int8_engine() { return kEngine; }

}  // namespace qkv::cpu
#endif
