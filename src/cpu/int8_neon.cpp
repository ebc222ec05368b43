// The int8 engines of Arm: SMMLA (FEAT_I8MM) multiplies 2x8 by 8x2, SDOT (FEAT_DotProd) adds four
// products to each of four sums. They share the packing, panels of eight columns:
//
//   packed[panel][eight of depth][8 columns][8]
//
// of which two columns are a cell, 16 bytes: what SMMLA takes, and SDOT as well, whose sums then
// are halves that stand side by side.
#include "cpu/int8_engine.h"

#if defined(__aarch64__)
#include <algorithm>
#include <cstring>

#include "cpu/arm_int8.h"
#include "cpu/scratch.h"

namespace qkv::cpu {
namespace {

constexpr std::int64_t kPanel = 8;  // columns
constexpr std::int64_t kStep = 8;   // of depth, 64 bytes of a panel
constexpr int kCells = 4;           // of a step

void pack(const Rows& from, std::int64_t inputs, std::int64_t columns, const Int8Depth& size,
          std::byte* panel) {
  std::memset(panel, 0, static_cast<std::size_t>(size.depth * kPanel));
  for (std::int64_t j = 0; j < columns; ++j) {
    const std::byte* column = from.data + j * from.step;
    for (std::int64_t k = 0; k < inputs; ++k) {
      panel[k / kStep * kStep * kPanel + j * kStep + k % kStep] = column[k * from.stride];
    }
  }
}

const std::int8_t* step_at(const Int8Block& p, std::int64_t panel, std::int64_t k) {
  return reinterpret_cast<const std::int8_t*>(p.b) + panel * p.panel_bytes + k * kPanel;
}

// Where a product of registers begins, and how far apart its panels are.
struct Place {
  std::int64_t row, panel, apart = 1;
};

// The scales of a panel's columns for one group.
const float* scale_at(const Int8Block& p, std::int64_t panel, std::int64_t group) {
  return p.scale + (panel * p.size.groups + group) * kPanel;
}
float* result_at(const Int8Block& p, const Place& at) {
  return p.c + at.row * p.c_stride + at.panel * kPanel;
}

// total + sums of whole numbers times the scale of their row and those of their columns.
inline float32x4_t add_scaled(float32x4_t total, int32x4_t sums, float32x4_t row,
                              float32x4_t columns) {
  return vfmaq_f32(total, vmulq_f32(vcvtq_f32_s32(sums), row), columns);
}

// --- SDOT ---

// kRows rows by kPanels panels: 4 * kRows * kPanels sums of whole numbers for a group, half as many
// totals.
template <int kRows, int kPanels>
QKV_DOT void dot_registers(const Int8Block& p, const Place& at) {
  const std::int64_t groups = p.size.groups;
  float32x4_t total[kRows][kPanels][2] = {};
  for (std::int64_t g = 0; g < groups; ++g) {
    int32x4_t sum[kRows][kPanels][kCells] = {};
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += kStep) {
      int8x16_t left[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        left[i] = vreinterpretq_s8_s64(vld1q_dup_s64(
            reinterpret_cast<const std::int64_t*>(p.a + (at.row + i) * p.a_stride + k)));
      }
#pragma GCC unroll 4
      for (int v = 0; v < kPanels; ++v) {
        const std::int8_t* b = step_at(p, at.panel + v * at.apart, k);
#pragma GCC unroll 4
        for (int c = 0; c < kCells; ++c) {
          const int8x16_t cell = vld1q_s8(b + 16 * c);
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) sum[i][v][c] = vdotq_s32(sum[i][v][c], cell, left[i]);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) {
      const float* scale = scale_at(p, at.panel + v * at.apart, g);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float32x4_t row = vdupq_n_f32(p.a_scale[(at.row + i) * groups + g]);
        const auto& s = sum[i][v];
        auto& t = total[i][v];
        t[0] = add_scaled(t[0], vpaddq_s32(s[0], s[1]), row, vld1q_f32(scale));
        t[1] = add_scaled(t[1], vpaddq_s32(s[2], s[3]), row, vld1q_f32(scale + 4));
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kPanels; ++v) {
      float* c = result_at(p, {at.row + i, at.panel + v * at.apart});
      vst1q_f32(c, total[i][v][0]);
      vst1q_f32(c + 4, total[i][v][1]);
    }
  }
}

void multiply_dot(const Int8Block& p) {
  const std::int64_t panels = p.columns / kPanel;
  std::int64_t i = 0;
  for (; i + 2 <= p.rows; i += 2) {
    for (std::int64_t j = 0; j < panels; ++j) dot_registers<2, 1>(p, {i, j});
  }
  for (; i < p.rows; ++i) {
    // One row reads the weight as four streams, each a quarter of the panels: a Neoverse-V1 reads
    // 66 GB/s so, and 50 as one.
    const std::int64_t quarter = panels / 4;
    for (std::int64_t j = 0; j < quarter; ++j) dot_registers<1, 4>(p, {i, j, quarter});
    for (std::int64_t j = 4 * quarter; j < panels; ++j) dot_registers<1, 1>(p, {i, j});
  }
}

// --- SMMLA ---

// Two rows to cells, [eight of depth][row][8], in the place of the rows.
void arrange_pair(std::int8_t* rows, std::int64_t stride, std::int64_t depth) {
  const Scratch<std::int8_t> copy(2 * depth);
  std::memcpy(copy.get(), rows, static_cast<std::size_t>(depth));
  std::memcpy(copy.get() + depth, rows + stride, static_cast<std::size_t>(depth));
  for (std::int64_t k = 0; k < depth; k += kStep, rows += 2 * kStep) {
    vst1q_s8(rows, vcombine_s8(vld1_s8(copy.get() + k), vld1_s8(copy.get() + depth + k)));
  }
}

inline float32x4_t lower(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}
inline float32x4_t upper(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}
// [x, x, y, y], [x, y, x, y].
inline float32x4_t twice_each(const float* x, const float* y) {
  return vcombine_f32(vld1_dup_f32(x), vld1_dup_f32(y));
}
inline float32x4_t twice_both(const float* xy) {
  const float32x2_t pair = vld1_f32(xy);
  return vcombine_f32(pair, pair);
}

// 2 * kPairs rows by a panel: 4 * kPairs sums of [x0 y0, x0 y1, x1 y0, x1 y1], and where there are
// several groups as many totals.
template <int kPairs, bool kGroups>
QKV_I8MM void multiply_registers(const Int8Block& p, const Place& at) {
  const std::int64_t groups = kGroups ? p.size.groups : 1;
  float32x4_t total[kPairs][kCells] = {};
  for (std::int64_t g = 0; g < groups; ++g) {
    int32x4_t sum[kPairs][kCells] = {};
    const std::int64_t first = g * p.size.group;
    const std::int64_t end = std::min(p.size.depth, first + p.size.group);
    const std::int8_t* b = step_at(p, at.panel, first);
    const std::int8_t* a = p.a + at.row * p.a_stride + 2 * first;
    for (std::int64_t k = first; k < end; k += kStep, a += 2 * kStep, b += kStep * kPanel) {
      const int8x16_t cell[kCells] = {vld1q_s8(b), vld1q_s8(b + 16), vld1q_s8(b + 32),
                                      vld1q_s8(b + 48)};
#pragma GCC unroll 6
      for (int i = 0; i < kPairs; ++i) {
        const int8x16_t left = vld1q_s8(a + 2 * i * p.a_stride);
#pragma GCC unroll 4
        for (int c = 0; c < kCells; ++c) sum[i][c] = vmmlaq_s32(sum[i][c], left, cell[c]);
      }
    }
    const float* scale = scale_at(p, at.panel, g);
#pragma GCC unroll 6
    for (int i = 0; i < kPairs; ++i) {
      const float* row = p.a_scale + (at.row + 2 * i) * groups + g;
      // The second row of an odd last pair is not there.
      const bool both = at.row + 2 * i + 1 < p.rows;
      const float32x4_t rows = twice_each(row, both ? row + groups : row);
#pragma GCC unroll 4
      for (int c = 0; c < kCells; ++c) {
        total[i][c] = add_scaled(total[i][c], sum[i][c], rows, twice_both(scale + 2 * c));
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kPairs; ++i) {
    const auto& t = total[i];
    float* c = result_at(p, {at.row + 2 * i, at.panel});
    vst1q_f32(c, lower(t[0], t[1]));
    vst1q_f32(c + 4, lower(t[2], t[3]));
    if (at.row + 2 * i + 1 == p.rows) continue;
    vst1q_f32(c + p.c_stride, upper(t[0], t[1]));
    vst1q_f32(c + p.c_stride + 4, upper(t[2], t[3]));
  }
}

void multiply_pairs(const Int8Block& p) {
  if (!p.arranged) return multiply_dot(p);
  using Multiply = void (*)(const Int8Block&, const Place&);
  constexpr Multiply kWhole[] = {multiply_registers<1, false>, multiply_registers<2, false>,
                                 multiply_registers<3, false>, multiply_registers<4, false>,
                                 multiply_registers<5, false>, multiply_registers<6, false>};
  constexpr Multiply kGrouped[] = {multiply_registers<1, true>, multiply_registers<2, true>,
                                   multiply_registers<3, true>};
  const bool whole = p.size.groups == 1;
  const Multiply* run = whole ? kWhole : kGrouped;
  const std::int64_t most = whole ? 6 : 3, pairs = (p.rows + 1) / 2;
  std::int64_t done = 0;
  for (std::int64_t blocks = (pairs + most - 1) / most; blocks > 0; --blocks) {
    const std::int64_t count = (pairs - done + blocks - 1) / blocks;  // as even as can be
    for (std::int64_t j = 0; j < p.columns / kPanel; ++j) run[count - 1](p, {2 * done, j});
    done += count;
  }
}

constexpr Int8Engine kDotEngine{.name = "neon_dot",
                                .panel = kPanel,
                                .row_multiple = 1,
                                .tile_rows = 32,
                                .tile_columns = 64,
                                .stream_columns = 64,
                                .single_columns = kMostSingleColumns,
                                .arrange = nullptr,
                                .pack = pack,
                                .multiply = multiply_dot,
                                .begin = nullptr,
                                .end = nullptr};
constexpr Int8Engine kPairEngine{.name = "neon_i8mm",
                                 .panel = kPanel,
                                 .row_multiple = 2,
                                 .tile_rows = 48,
                                 .tile_columns = 32,
                                 .stream_columns = 64,
                                 .single_columns = kMostSingleColumns,
                                 .arrange = arrange_pair,
                                 .pack = pack,
                                 .multiply = multiply_pairs,
                                 .begin = nullptr,
                                 .end = nullptr};

}  // namespace

const Int8Engine* neon_dot_engine() {
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &kDotEngine : nullptr;
}

const Int8Engine* neon_i8mm_engine() {
  const bool runs = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0 && neon_dot_engine() != nullptr;
  return runs ? &kPairEngine : neon_dot_engine();
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const Int8Engine* neon_dot_engine() { return nullptr; }
const Int8Engine* neon_i8mm_engine() { return nullptr; }

}  // namespace qkv::cpu

#endif
