// The bf16 engines of x86: AMX (TDPBF16PS, 16 x 16 x 32 per instruction) and AVX512-BF16
// (VDPBF16PS). Both want pairs along the reduction side by side, so they share the packing:
//
//   packed[panel of 16 columns][pair of depth][16 columns][2]
//
// of which AMX reads 16 pairs x 64 bytes as one tile. Functions carry their target as an attribute,
// not the file as a flag: nothing inline leaks AVX-512 code into the rest of the program.
#include "cpu/attention_engine.h"
#include "cpu/scratch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>

#include "cpu/amx_tiles.h"

#define QKV_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define QKV_AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")))

namespace qkv::cpu {
namespace {

constexpr std::int64_t kPanel = 16;  // columns
constexpr std::int64_t kDepth = 32;  // of one AMX tile

std::int64_t panel_stride(std::int64_t depth) { return round_up(depth, kDepth) * kPanel; }

// 16 x 16 words of 32 bits: rows to columns, in four rounds of pairing.
QKV_AVX512_BF16 inline void transpose_16x16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

QKV_AVX512_BF16 void pack_transposed(const void* source, std::int64_t stride, std::int64_t rows,
                                     const TileExtents& size, void* packed) {
  const auto* from = static_cast<const bf16*>(source);
  auto* to = static_cast<bf16*>(packed);
  for (std::int64_t j = 0; j < size.columns; j += kPanel) {
    for (std::int64_t k = 0; k < size.depth; k += kDepth) {
      const std::int64_t left = std::min(kDepth, size.depth - k);
      const auto mask = static_cast<__mmask32>(left == kDepth ? ~0u : (1u << left) - 1);
      __m512i words[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        words[i] = j + i < rows ? _mm512_maskz_loadu_epi16(mask, from + (j + i) * stride + k)
                                : _mm512_setzero_si512();
      }
      transpose_16x16(words);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * 32, words[i]);
      to += kDepth * kPanel;
    }
  }
}

QKV_AVX512_BF16 void pack(const void* source, std::int64_t stride, std::int64_t rows,
                          const TileExtents& size, void* packed) {
  const auto* from = static_cast<const bf16*>(source);
  auto* to = static_cast<bf16*>(packed);
  const std::int64_t depth = round_up(size.depth, kDepth);
  for (std::int64_t j = 0; j < size.columns; j += kPanel) {
    const std::int64_t left = std::min(kPanel, size.columns - j);
    const auto mask = static_cast<__mmask16>(left == kPanel ? 0xffffu : (1u << left) - 1);
    const auto row = [&](std::int64_t k) QKV_AVX512_BF16 {
      return k < rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + k * stride + j))
                      : _mm512_setzero_si512();
    };
    for (std::int64_t k = 0; k < depth; k += 2, to += 2 * kPanel) {
      const __m512i high = _mm512_slli_epi32(row(k + 1), 16);
      _mm512_storeu_si512(to, _mm512_or_si512(row(k), high));
    }
  }
}

// --- AVX512-BF16 ---

template <int kRows, int kPanels>
QKV_AVX512_BF16 inline void dot_registers(const bf16* a, std::int64_t a_stride, const bf16* b,
                                          std::int64_t b_stride, float* c, std::int64_t c_stride,
                                          std::int64_t depth, bool accumulate) {
  __m512 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) {
      sum[i][v] = accumulate ? _mm512_loadu_ps(c + i * c_stride + v * kPanel) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < depth; k += 2) {
    __m512bh right[kPanels];
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) {
      right[v] = (__m512bh)_mm512_loadu_si512(b + v * b_stride + k * kPanel);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      int pair;
      __builtin_memcpy(&pair, a + i * a_stride + k, sizeof pair);
      const auto left = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kPanels; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kPanels; ++v) _mm512_storeu_ps(c + i * c_stride + v * kPanel, sum[i][v]);
  }
}

// All rows of kPanels panels; A and C are touched up to the next multiple of 8 rows.
template <int kPanels>
QKV_AVX512_BF16 void dot_panels(const bf16* a, std::int64_t a_stride, const bf16* b,
                                std::int64_t b_stride, float* c, std::int64_t c_stride,
                                const TileExtents& size, bool accumulate) {
  for (std::int64_t i = 0; i < size.rows; i += 8) {
    const std::int64_t left = size.rows - i;  // one row of a decoder is one row
    const auto run = left > 4   ? dot_registers<8, kPanels>
                     : left > 2 ? dot_registers<4, kPanels>
                     : left > 1 ? dot_registers<2, kPanels>
                                : dot_registers<1, kPanels>;
    run(a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, size.depth,
        accumulate);
  }
}

QKV_AVX512_BF16 void multiply_dot(const LeftOperand& a, const PackedOperand& b, float* c,
                                  std::int64_t c_stride, const TileExtents& size, bool accumulate) {
  const auto* left = static_cast<const bf16*>(a.data);
  const auto* right = static_cast<const bf16*>(b.data);
  const std::int64_t stride = panel_stride(b.depth);
  std::int64_t panels = (size.columns + kPanel - 1) / kPanel;
  while (panels > 0) {
    const std::int64_t take = panels == 4 ? 2 : std::min<std::int64_t>(panels, 3);
    const auto run = take == 3 ? dot_panels<3> : take == 2 ? dot_panels<2> : dot_panels<1>;
    run(left, a.stride, right, stride, c, c_stride, size, accumulate);
    panels -= take;
    right += take * stride;
    c += take * kPanel;
  }
}

// --- AMX ---

constexpr TileConfig kTileConfig;

QKV_AMX void begin_tiles() { _tile_loadconfig(&kTileConfig); }
QKV_AMX void end_tiles() { _tile_release(); }

// The 8 tiles: 0 to 3 sum a 32 x 32 block of C, 4 and 5 hold A, 6 and 7 hold B.
template <bool kTwoRows, bool kTwoColumns>
QKV_AMX inline void tile_block(const bf16* a, std::int64_t a_stride, const bf16* b,
                               std::int64_t b_stride, float* c, std::int64_t c_stride,
                               std::int64_t depth, bool accumulate) {
  const std::int64_t a_bytes = a_stride * 2, c_bytes = c_stride * 4;
  float* c_below = c + 16 * c_stride;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    if (kTwoColumns) _tile_loadd(1, c + 16, c_bytes);
    if (kTwoRows) _tile_loadd(2, c_below, c_bytes);
    if (kTwoRows && kTwoColumns) _tile_loadd(3, c_below + 16, c_bytes);
  } else {
    _tile_zero(0);
    if (kTwoColumns) _tile_zero(1);
    if (kTwoRows) _tile_zero(2);
    if (kTwoRows && kTwoColumns) _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b + k * kPanel, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (kTwoColumns) {
      _tile_loadd(7, b + b_stride + k * kPanel, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (kTwoRows) {
      _tile_loadd(5, a + 16 * a_stride + k, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (kTwoColumns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  if (kTwoColumns) _tile_stored(1, c + 16, c_bytes);
  if (kTwoRows) _tile_stored(2, c_below, c_bytes);
  if (kTwoRows && kTwoColumns) _tile_stored(3, c_below + 16, c_bytes);
}

// Up to 16 rows by 64 columns: four streams of B from memory, asked for some tiles ahead.
QKV_AMX inline void tile_row(const bf16* a, std::int64_t a_stride, const bf16* b,
                             std::int64_t b_stride, float* c, std::int64_t c_stride,
                             std::int64_t depth, bool accumulate) {
  constexpr std::int64_t kTile = kDepth * kPanel, kAhead = 4 * kTile;
  const std::int64_t c_bytes = c_stride * 4;
  const auto fetch = [](const bf16* tile) {
    for (std::int64_t i = 0; i < kTile; i += 32) __builtin_prefetch(tile + kAhead + i);
  };
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, c + 32, c_bytes);
    _tile_loadd(3, c + 48, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += kDepth, b += kTile) {
    for (int stream = 0; stream < 4; ++stream) fetch(b + stream * b_stride);
    _tile_loadd(4, a + k, a_stride * 2);
    _tile_loadd(5, b, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + b_stride, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b + 2 * b_stride, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b + 3 * b_stride, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, c + 32, c_bytes);
  _tile_stored(3, c + 48, c_bytes);
}

QKV_AMX void multiply_tiles(const LeftOperand& a, const PackedOperand& b, float* c,
                            std::int64_t c_stride, const TileExtents& size, bool accumulate) {
  const std::int64_t stride = panel_stride(b.depth);
  std::int64_t j = 0;
  for (; size.rows <= 16 && j + 48 < size.columns; j += 64) {
    tile_row(static_cast<const bf16*>(a.data), a.stride,
             static_cast<const bf16*>(b.data) + j / kPanel * stride, stride, c + j, c_stride,
             size.depth, accumulate);
  }
  for (; j < size.columns; j += 32) {
    const auto* right = static_cast<const bf16*>(b.data) + j / kPanel * stride;
    const bool two_columns = j + 16 < size.columns;
    for (std::int64_t i = 0; i < size.rows; i += 32) {
      const auto* left = static_cast<const bf16*>(a.data) + i * a.stride;
      const bool two_rows = i + 16 < size.rows;
      const auto run = two_rows
                           ? (two_columns ? tile_block<true, true> : tile_block<true, false>)
                           : (two_columns ? tile_block<false, true> : tile_block<false, false>);
      run(left, a.stride, right, stride, c + i * c_stride + j, c_stride, size.depth, accumulate);
    }
  }
}

bool cpu_has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 22 & 1u) != 0 && (d >> 24 & 1u) != 0;
}

constexpr AttentionEngine kDotEngine{.name = "avx512_bf16",
                                     .operand = DType::bf16,
                                     .tile_rows = 64,
                                     .tile_keys = 96,
                                     .row_multiple = 8,
                                     .depth_multiple = kDepth,
                                     .column_multiple = kPanel,
                                     .rows_together = 1,
                                     .uses_as_rows = 0,
                                     .pack_transposed = pack_transposed,
                                     .pack = pack,
                                     .turn = nullptr,
                                     .multiply = multiply_dot,
                                     .store_scaled = nullptr,
                                     .begin = nullptr,
                                     .end = nullptr};
constexpr AttentionEngine kTileEngine{.name = "amx",
                                      .operand = DType::bf16,
                                      .tile_rows = 32,
                                      .tile_keys = 256,
                                      .row_multiple = 16,
                                      .depth_multiple = kDepth,
                                      .column_multiple = kPanel,
                                      .rows_together = 1,
                                      .uses_as_rows = 0,
                                      .pack_transposed = pack_transposed,
                                      .pack = pack,
                                      .turn = nullptr,
                                      .multiply = multiply_tiles,
                                      .store_scaled = nullptr,
                                      .begin = begin_tiles,
                                      .end = end_tiles};

}  // namespace

const AttentionEngine* avx512_bf16_engine() {
  static const bool runs =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
  return runs ? &kDotEngine : nullptr;
}

const AttentionEngine* amx_engine() {
  static const bool runs = avx512_bf16_engine() != nullptr && cpu_has_amx_bf16() && request_tiles();
  return runs ? &kTileEngine : nullptr;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const AttentionEngine* avx512_bf16_engine() { return nullptr; }
const AttentionEngine* amx_engine() { return nullptr; }

}  // namespace qkv::cpu

#endif
