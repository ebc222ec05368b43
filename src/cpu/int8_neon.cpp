// The int8 engines of Arm: SMMLA (FEAT_I8MM) multiplies 2x8 by 8x2, SDOT (FEAT_DotProd) adds four
// products to each of four sums. They share the packing, panels of eight columns:
//
//   packed[panel][eight of depth][8 columns][8]
//
// of which two columns are a cell, 16 bytes: what SMMLA takes, and SDOT as well, whose sums then
// are halves that stand side by side. Functions carry their target as an attribute, not the file as
// a flag, so that machines without these instructions run the rest of the program.
#include "cpu/int8_engine.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>

#define QKV_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#define QKV_I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

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

// Eight sums of one row and group to their share of C.
struct Place {
  std::int64_t row, panel, group;
};
inline void add_sums(const Int8Block& p, const Place& at, int32x4_t low, int32x4_t high) {
  const std::int64_t groups = p.size.groups;
  const float* scale = p.scale + (at.panel * groups + at.group) * kPanel;
  const float row = p.a_scale[at.row * groups + at.group];
  float* c = p.c + at.row * p.c_stride + at.panel * kPanel;
  const int32x4_t sums[2] = {low, high};
  for (int half = 0; half < 2; ++half, c += 4, scale += 4) {
    const float32x4_t value = vmulq_n_f32(vcvtq_f32_s32(sums[half]), row);
    const float32x4_t before = at.group == 0 ? vdupq_n_f32(0) : vld1q_f32(c);
    vst1q_f32(c, vfmaq_f32(before, value, vld1q_f32(scale)));
  }
}

// --- SDOT ---

// kRows rows by kPanels panels, 4 * kRows * kPanels sums.
template <int kRows, int kPanels>
QKV_DOT void dot_registers(const Int8Block& p, std::int64_t row, std::int64_t panel) {
  for (std::int64_t g = 0; g < p.size.groups; ++g) {
    int32x4_t sum[kRows][kPanels][kCells];
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kPanels; ++v) {
        for (int c = 0; c < kCells; ++c) sum[i][v][c] = vdupq_n_s32(0);
      }
    }
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += kStep) {
      int8x16_t left[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int8x8_t eight = vld1_s8(p.a + (row + i) * p.a_stride + k);
        left[i] = vcombine_s8(eight, eight);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kPanels; ++v) {
        const std::int8_t* b = step_at(p, panel + v, k);
#pragma GCC unroll 4
        for (int c = 0; c < kCells; ++c) {
          const int8x16_t cell = vld1q_s8(b + 16 * c);
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) sum[i][v][c] = vdotq_s32(sum[i][v][c], cell, left[i]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kPanels; ++v) {
        const auto& s = sum[i][v];
        add_sums(p, {row + i, panel + v, g}, vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
      }
    }
  }
}

void multiply_dot(const Int8Block& p) {
  const std::int64_t panels = p.columns / kPanel;
  std::int64_t i = 0;
  for (; i + 4 <= p.rows; i += 4) {
    for (std::int64_t j = 0; j < panels; ++j) dot_registers<4, 1>(p, i, j);
  }
  for (; i + 2 <= p.rows; i += 2) {
    for (std::int64_t j = 0; j < panels; ++j) dot_registers<2, 1>(p, i, j);
  }
  for (; i < p.rows; ++i) {  // one row reads the weight as four streams
    std::int64_t j = 0;
    for (; j + 4 <= panels; j += 4) dot_registers<1, 4>(p, i, j);
    for (; j < panels; ++j) dot_registers<1, 1>(p, i, j);
  }
}

// --- SMMLA ---

inline int32x4_t lower(int32x4_t x, int32x4_t y) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}
inline int32x4_t upper(int32x4_t x, int32x4_t y) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}

// 2 * kPairs rows by a panel: 4 * kPairs sums of [x0 y0, x0 y1, x1 y0, x1 y1].
template <int kPairs>
QKV_I8MM void multiply_registers(const Int8Block& p, std::int64_t row, std::int64_t panel) {
  for (std::int64_t g = 0; g < p.size.groups; ++g) {
    int32x4_t sum[kPairs][kCells];
    for (int i = 0; i < kPairs; ++i) {
      for (int c = 0; c < kCells; ++c) sum[i][c] = vdupq_n_s32(0);
    }
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += kStep) {
      const std::int8_t* b = step_at(p, panel, k);
      int8x16_t left[kPairs];
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        const std::int8_t* a = p.a + (row + 2 * i) * p.a_stride + k;
        left[i] = vcombine_s8(vld1_s8(a), vld1_s8(a + p.a_stride));
      }
#pragma GCC unroll 4
      for (int c = 0; c < kCells; ++c) {
        const int8x16_t cell = vld1q_s8(b + 16 * c);
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i) sum[i][c] = vmmlaq_s32(sum[i][c], left[i], cell);
      }
    }
    for (int i = 0; i < kPairs; ++i) {
      const auto& s = sum[i];
      const Place at{row + 2 * i, panel, g};
      add_sums(p, at, lower(s[0], s[1]), lower(s[2], s[3]));
      if (at.row + 1 == p.rows) continue;  // the second row of an odd last pair is not there
      add_sums(p, {at.row + 1, panel, g}, upper(s[0], s[1]), upper(s[2], s[3]));
    }
  }
}

void multiply_pairs(const Int8Block& p) {
  if (p.rows == 1) return multiply_dot(p);
  for (std::int64_t i = 0; i < p.rows; i += 8) {
    const std::int64_t pairs = std::min<std::int64_t>(4, (p.rows - i + 1) / 2);
    const auto run = pairs == 4   ? multiply_registers<4>
                     : pairs == 3 ? multiply_registers<3>
                     : pairs == 2 ? multiply_registers<2>
                                  : multiply_registers<1>;
    for (std::int64_t j = 0; j < p.columns / kPanel; ++j) run(p, i, j);
  }
}

constexpr Int8Engine kDotEngine{.name = "neon_dot",
                                .panel = kPanel,
                                .row_multiple = 1,
                                .tile_rows = 32,
                                .tile_columns = 64,
                                .stream_columns = 64,
                                .pack = pack,
                                .multiply = multiply_dot,
                                .begin = nullptr,
                                .end = nullptr};
constexpr Int8Engine kPairEngine{.name = "neon_i8mm",
                                 .panel = kPanel,
                                 .row_multiple = 2,
                                 .tile_rows = 32,
                                 .tile_columns = 64,
                                 .stream_columns = 64,
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
