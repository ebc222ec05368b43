// The int8 engines of x86: AVX512-VNNI (VPDPBUSD) and AMX (TDPBSUD, 16 x 16 x 64 per instruction).
// Both want four elements along the reduction side by side, so they share the packing:
//
//   packed[panel of 16 columns][four of depth][16 columns][4]
//
// of which AMX reads 16 x 64 bytes as one tile. VPDPBUSD multiplies unsigned by signed bytes, so
// weights are kept as w + 128, and 128 times the sum of the row's elements is taken off again:
// that is one number per row and group, and costs no memory beside the weight.
#include "cpu/int8_engine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/amx_tiles.h"

#define QKV_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define QKV_AMX_INT8 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8")))

namespace qkv::cpu {
namespace {

constexpr std::int64_t kPanel = 16;    // columns
constexpr std::int32_t kOffset = 128;  // of the weights

void pack(const Rows& from, std::int64_t inputs, std::int64_t columns, const Int8Depth& size,
          std::byte* panel) {
  std::memset(panel, 0, static_cast<std::size_t>(size.depth * kPanel));
  auto* to = reinterpret_cast<std::uint8_t*>(panel);
  const auto* data = reinterpret_cast<const std::uint8_t*>(from.data);
  std::int64_t k = 0;
  for (; from.stride == 1 && k + 4 <= inputs; k += 4) {  // a column lies as a row in memory
    for (std::int64_t j = 0; j < columns; ++j) {
      std::uint32_t four;
      std::memcpy(&four, data + k + j * from.step, sizeof four);
      four ^= 0x80808080u;
      std::memcpy(to + k * kPanel + j * 4, &four, sizeof four);
    }
  }
  for (; k < inputs; ++k) {
    for (std::int64_t j = 0; j < columns; ++j) {
      to[k / 4 * 4 * kPanel + j * 4 + k % 4] =
          static_cast<std::uint8_t>(data[k * from.stride + j * from.step] ^ kOffset);
    }
  }
}

// GCC 12 warns of the undefined lanes that _mm512_cvtepi32_ps names and does not use.
QKV_VNNI inline __m512 to_f32(__m512i x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }

// --- AVX512-VNNI ---

// kRows rows by kPanels panels.
template <int kRows, int kPanels>
QKV_VNNI void dot_registers(const Int8Block& p) {
  __m512 total[kRows][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) total[i][v] = _mm512_setzero_ps();
  }
  for (std::int64_t g = 0; g < p.size.groups; ++g) {
    __m512i sum[kRows][kPanels];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512i start = _mm512_set1_epi32(-kOffset * p.a_sums[i * p.size.groups + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kPanels; ++v) sum[i][v] = start;
    }
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += 4) {
      __m512i right[kPanels];
#pragma GCC unroll 4
      for (int v = 0; v < kPanels; ++v) {
        right[v] = _mm512_loadu_si512(p.b + v * p.panel_bytes + k * kPanel);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        int four;
        std::memcpy(&four, p.a + i * p.a_stride + k, sizeof four);
        const __m512i left = _mm512_set1_epi32(four);
#pragma GCC unroll 4
        for (int v = 0; v < kPanels; ++v) {
          sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], right[v], left);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) {
      const __m512 scale = _mm512_loadu_ps(p.scale + (v * p.size.groups + g) * kPanel);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m512 row = _mm512_set1_ps(p.a_scale[i * p.size.groups + g]);
        total[i][v] = _mm512_fmadd_ps(_mm512_mul_ps(to_f32(sum[i][v]), row), scale, total[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) {
      _mm512_storeu_ps(p.c + i * p.c_stride + v * kPanel, total[i][v]);
    }
  }
}

// The block from another row and panel on.
Int8Block part_of(const Int8Block& p, std::int64_t row, std::int64_t column) {
  Int8Block part = p;
  part.a += row * p.a_stride;
  part.a_scale += row * p.size.groups;
  part.a_sums += row * p.size.groups;
  part.b += column / kPanel * p.panel_bytes;
  part.scale += column * p.size.groups;
  part.c += row * p.c_stride + column;
  part.rows -= row;
  part.columns -= column;
  return part;
}

template <int kPanels>
void dot_panels(const Int8Block& p) {
  constexpr int kRows = 6;  // 24 sums, 4 panels of B, and one row at a time
  for (std::int64_t i = 0; i < p.rows; i += kRows) {
    const Int8Block part = part_of(p, i, 0);
    switch (std::min<std::int64_t>(part.rows, kRows)) {
      case 1: dot_registers<1, kPanels>(part); break;
      case 2: dot_registers<2, kPanels>(part); break;
      case 3: dot_registers<3, kPanels>(part); break;
      case 4: dot_registers<4, kPanels>(part); break;
      case 5: dot_registers<5, kPanels>(part); break;
      default: dot_registers<kRows, kPanels>(part);
    }
  }
}

void multiply_dot(const Int8Block& p) {
  for (std::int64_t j = 0; j < p.columns; j += 4 * kPanel) {
    const Int8Block part = part_of(p, 0, j);
    switch (part.columns / kPanel) {
      case 1: dot_panels<1>(part); break;
      case 2: dot_panels<2>(part); break;
      case 3: dot_panels<3>(part); break;
      default: dot_panels<4>(part);
    }
  }
}

// --- AMX ---

// The 8 tiles: 0 to 3 sum, 4 and 5 hold A, 6 and 7 hold B.
constexpr TileConfig kTiles;
constexpr std::int64_t kTileDepth = 64;

QKV_AMX_INT8 void begin_tiles(const Int8Depth&) { _tile_loadconfig(&kTiles); }
QKV_AMX_INT8 void end_tiles() { _tile_release(); }

// The whole numbers of one group to its share of C. `sums` are rows of 16 by tile.
struct GroupOfTiles {
  const std::int32_t* sums;
  std::int64_t stride, group;
};
QKV_AMX_INT8 void add_group(const Int8Block& p, const GroupOfTiles& tiles, std::int64_t rows,
                            std::int64_t columns) {
  const std::int64_t groups = p.size.groups;
  for (std::int64_t j = 0; j < columns; j += kPanel) {
    const __m512 scale = _mm512_loadu_ps(p.scale + j * groups + tiles.group * kPanel);
    for (std::int64_t i = 0; i < rows; ++i) {
      const __m512i offset = _mm512_set1_epi32(kOffset * p.a_sums[i * groups + tiles.group]);
      const __m512i sum = _mm512_loadu_si512(tiles.sums + i * tiles.stride + j);
      const __m512 row = _mm512_set1_ps(p.a_scale[i * groups + tiles.group]);
      const __m512 value = _mm512_mul_ps(to_f32(_mm512_sub_epi32(sum, offset)), row);
      float* c = p.c + i * p.c_stride + j;
      const __m512 before = tiles.group == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
      _mm512_storeu_ps(c, _mm512_fmadd_ps(value, scale, before));
    }
  }
}

// Up to 32 rows by 32 columns, or 16 by 16 where there are no more.
template <bool kTwoRows, bool kTwoColumns>
QKV_AMX_INT8 void tile_block(const Int8Block& p) {
  alignas(64) std::int32_t sums[32 * 32];
  constexpr std::int64_t kBytes = 32 * sizeof(std::int32_t);
  for (std::int64_t g = 0; g < p.size.groups; ++g) {
    _tile_zero(0);
    if (kTwoColumns) _tile_zero(1);
    if (kTwoRows) _tile_zero(2);
    if (kTwoRows && kTwoColumns) _tile_zero(3);
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += kTileDepth) {
      _tile_loadd(4, p.a + k, p.a_stride);
      _tile_loadd(6, p.b + k * kPanel, 64);
      _tile_dpbsud(0, 4, 6);
      if (kTwoColumns) {
        _tile_loadd(7, p.b + p.panel_bytes + k * kPanel, 64);
        _tile_dpbsud(1, 4, 7);
      }
      if (kTwoRows) {
        _tile_loadd(5, p.a + 16 * p.a_stride + k, p.a_stride);
        _tile_dpbsud(2, 5, 6);
        if (kTwoColumns) _tile_dpbsud(3, 5, 7);
      }
    }
    _tile_stored(0, sums, kBytes);
    if (kTwoColumns) _tile_stored(1, sums + 16, kBytes);
    if (kTwoRows) _tile_stored(2, sums + 16 * 32, kBytes);
    if (kTwoRows && kTwoColumns) _tile_stored(3, sums + 16 * 32 + 16, kBytes);
    add_group(p, {sums, 32, g}, std::min<std::int64_t>(p.rows, kTwoRows ? 32 : 16),
              kTwoColumns ? 32 : 16);
  }
}

// Up to 16 rows by 64 columns: four streams of B from memory, asked for some tiles ahead.
QKV_AMX_INT8 void tile_row(const Int8Block& p) {
  constexpr std::int64_t kAhead = 4096;
  alignas(64) std::int32_t sums[16 * 64];
  constexpr std::int64_t kBytes = 64 * sizeof(std::int32_t);
  const auto fetch = [](const std::byte* tile) {
    for (std::int64_t i = 0; i < kTileDepth * kPanel; i += 64)
      __builtin_prefetch(tile + kAhead + i);
  };
  for (std::int64_t g = 0; g < p.size.groups; ++g) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const std::int64_t end = std::min(p.size.depth, (g + 1) * p.size.group);
    for (std::int64_t k = g * p.size.group; k < end; k += kTileDepth) {
      const std::byte* b = p.b + k * kPanel;
      for (int stream = 0; stream < 4; ++stream) fetch(b + stream * p.panel_bytes);
      _tile_loadd(4, p.a + k, p.a_stride);
      _tile_loadd(6, b, 64);
      _tile_dpbsud(0, 4, 6);
      _tile_loadd(7, b + p.panel_bytes, 64);
      _tile_dpbsud(1, 4, 7);
      _tile_loadd(6, b + 2 * p.panel_bytes, 64);
      _tile_dpbsud(2, 4, 6);
      _tile_loadd(7, b + 3 * p.panel_bytes, 64);
      _tile_dpbsud(3, 4, 7);
    }
    _tile_stored(0, sums, kBytes);
    _tile_stored(1, sums + 16, kBytes);
    _tile_stored(2, sums + 32, kBytes);
    _tile_stored(3, sums + 48, kBytes);
    add_group(p, {sums, 64, g}, p.rows, 64);
  }
}

void multiply_tiles(const Int8Block& p) {
  constexpr std::int64_t kFewRows = 4;  // a tile has 16, whether they are needed or not
  // Groups of 32 would fill half a tile, and to add their sums to C would take longer than these.
  if (p.rows <= kFewRows || p.size.group < kTileDepth) return multiply_dot(p);
  std::int64_t j = 0;
  for (; p.rows <= 16 && j + 64 <= p.columns; j += 64) tile_row(part_of(p, 0, j));
  for (; j < p.columns; j += 32) {
    const bool two_columns = j + 16 < p.columns;
    for (std::int64_t i = 0; i < p.rows; i += 32) {
      const bool two_rows = i + 16 < p.rows;
      const auto run = two_rows
                           ? (two_columns ? tile_block<true, true> : tile_block<true, false>)
                           : (two_columns ? tile_block<false, true> : tile_block<false, false>);
      run(part_of(p, i, j));
    }
  }
}

bool cpu_has_amx_int8() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 24 & 1u) != 0 && (d >> 25 & 1u) != 0;
}

constexpr Int8Engine kDotEngine{.name = "avx512_vnni",
                                .panel = kPanel,
                                .row_multiple = 1,
                                .tile_rows = 48,
                                .tile_columns = 64,
                                .stream_columns = 64,
                                .single_columns = 64,
                                .arrange = nullptr,
                                .pack = pack,
                                .multiply = multiply_dot,
                                .begin = nullptr,
                                .end = nullptr};
constexpr Int8Engine kTileEngine{.name = "amx_int8",
                                 .panel = kPanel,
                                 .row_multiple = 16,
                                 .tile_rows = 32,
                                 .tile_columns = 32,
                                 .stream_columns = 64,
                                 .single_columns = 64,
                                 .arrange = nullptr,
                                 .pack = pack,
                                 .multiply = multiply_tiles,
                                 .begin = begin_tiles,
                                 .end = end_tiles};

}  // namespace

const Int8Engine* avx512_vnni_engine() {
  static const bool runs =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  return runs ? &kDotEngine : nullptr;
}

const Int8Engine* amx_int8_engine() {
  static const bool runs = avx512_vnni_engine() != nullptr && cpu_has_amx_int8() && request_tiles();
  return runs ? &kTileEngine : nullptr;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const Int8Engine* avx512_vnni_engine() { return nullptr; }
const Int8Engine* amx_int8_engine() { return nullptr; }

}  // namespace qkv::cpu

#endif
