// Decoding from int8 on Arm: one row by SDOT (FEAT_DotProd), which adds four products to each of
// four sums, and more by SMMLA (FEAT_I8MM), which multiplies 2x8 by 8x2.
#include "cpu/int8_decode.h"

#if defined(__aarch64__)
#include <algorithm>
#include <cmath>

#include "cpu/arm_int8.h"
#include "cpu/prefetch.h"

namespace qkv::cpu {
namespace {

using Left = Int8Decode::Left;
using Right = Int8Decode::Right;

constexpr std::int64_t kKeys = 4;  // at once: what SDOT sums over, or as many sums of a vector
constexpr std::int64_t kRowsAhead = 16;     // of keys, which are asked for while others are read
constexpr std::int64_t kKeysInCache = 128;  // of values: rows walked column by column
// Of a row in units of its scale: digits fit.
template <int kDigits>
constexpr float kLargest = kDigits == 3 ? 1 << 22 : 1 << 14;

// A row as whole numbers: x = scale * (d0 + 256 d1 + 65536 d2), digits from -128 to 127.
template <int kDigits>
struct Digits {
  alignas(16) std::int8_t of[kDigits][Int8Decode::kMostDepth];
  float scale;

  void set(const float* x, std::int64_t count) {
    float32x4_t most = vdupq_n_f32(0);
    for (std::int64_t i = 0; i < count; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
    scale = vmaxvq_f32(most) / kLargest<kDigits>;
    // A row too small to be divided by is 0: so are its products.
    const float inverse = scale > 0 ? 1 / scale : 0, factor = std::isfinite(inverse) ? inverse : 0;
    for (std::int64_t i = 0; i < count; i += 16) {
      int32x4_t rest[4];
      for (int part = 0; part < 4; ++part) {
        rest[part] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * part), factor));
      }
      for (auto& digit : of) {
        const int16x8_t low =
            vuzp1q_s16(vreinterpretq_s16_s32(rest[0]), vreinterpretq_s16_s32(rest[1]));
        const int16x8_t high =
            vuzp1q_s16(vreinterpretq_s16_s32(rest[2]), vreinterpretq_s16_s32(rest[3]));
        vst1q_s8(digit + i, vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high)));
        for (int32x4_t& part : rest) part = vrshrq_n_s32(part, 8);  // less the digit
      }
    }
  }
};

// Sums of digits as f32, in units of the row's scale.
template <int kDigits>
inline float32x4_t joined(const int32x4_t (&sum)[kDigits]) {
  const float32x4_t x = vfmaq_n_f32(vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1]), 256);
  return kDigits == 2 ? x : vfmaq_n_f32(x, vcvtq_f32_s32(sum[kDigits - 1]), 65536);
}

// kRows rows against four keys.
template <int kDigits, int kRows, Ask kAsk>
QKV_DOT void score_keys(const Digits<kDigits>* q, const std::int8_t* keys, std::int64_t stride,
                        std::int64_t depth, float* c, std::int64_t c_stride) {
  int32x4_t sum[kRows][kDigits][kKeys] = {};
  RowsAhead<kAsk> next(keys + kRowsAhead * stride, stride, depth);
  for (std::int64_t k = 0; k < depth; k += 16) {
    next.template ask<1>();
    int8x16_t key[kKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) key[j] = vld1q_s8(keys + j * stride + k);
#pragma GCC unroll 2
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int t = 0; t < kDigits; ++t) {
        const int8x16_t x = vld1q_s8(q[i].of[t] + k);
#pragma GCC unroll 4
        for (int j = 0; j < kKeys; ++j) sum[i][t][j] = vdotq_s32(sum[i][t][j], key[j], x);
      }
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < kRows; ++i) {
    int32x4_t total[kDigits];
#pragma GCC unroll 3
    for (int t = 0; t < kDigits; ++t) {
      const auto& s = sum[i][t];
      total[t] = vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
    }
    vst1q_f32(c + i * c_stride, vmulq_n_f32(joined(total), q[i].scale));
  }
}

template <int kDigits>
QKV_DOT void scores(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  constexpr decltype(&score_keys<kDigits, 1, Ask::near>) kRuns[2][2] = {
      {score_keys<kDigits, 1, Ask::near>, score_keys<kDigits, 1, Ask::far>},
      {score_keys<kDigits, 2, Ask::near>, score_keys<kDigits, 2, Ask::both>}};
  Digits<kDigits> digits[2];
  for (std::int64_t i = 0; i < q.rows; i += 2) {
    const std::int64_t rows = std::min<std::int64_t>(2, q.rows - i);
    for (std::int64_t r = 0; r < rows; ++r) {
      digits[r].set(q.data + (i + r) * q.stride, keys.columns);
    }
    const auto run = kRuns[rows - 1][keys.from_memory];
    std::int64_t j = 0;
    for (; j + kKeys <= keys.rows; j += kKeys) {
      run(digits, keys.data + j * keys.stride, keys.stride, keys.columns, c + i * c_stride + j,
          c_stride);
    }
    if (j == keys.rows) continue;
    // The last few: all four are the first of them, as far as they are not there.
    alignas(16) std::int8_t last[kKeys * Int8Decode::kMostDepth];
    for (std::int64_t k = 0; k < kKeys; ++k) {
      const std::int64_t row = j + k < keys.rows ? j + k : j;
      std::copy_n(keys.data + row * keys.stride, keys.columns, last + k * keys.columns);
    }
    float four[2 * kKeys];
    run(digits, last, keys.columns, keys.columns, four, kKeys);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(four + r * kKeys, keys.rows - j, c + (i + r) * c_stride + j);
    }
  }
}

// Four rows of sixteen bytes to four vectors of four columns, each along the four rows.
inline void zip_rows(int8x16_t (&x)[kKeys]) {
  const int16x8_t low01 = vreinterpretq_s16_s8(vzip1q_s8(x[0], x[1]));
  const int16x8_t high01 = vreinterpretq_s16_s8(vzip2q_s8(x[0], x[1]));
  const int16x8_t low23 = vreinterpretq_s16_s8(vzip1q_s8(x[2], x[3]));
  const int16x8_t high23 = vreinterpretq_s16_s8(vzip2q_s8(x[2], x[3]));
  x[0] = vreinterpretq_s8_s16(vzip1q_s16(low01, low23));
  x[1] = vreinterpretq_s8_s16(vzip2q_s16(low01, low23));
  x[2] = vreinterpretq_s8_s16(vzip1q_s16(high01, high23));
  x[3] = vreinterpretq_s8_s16(vzip2q_s16(high01, high23));
}

// Keys first .. first + count - 1 of the values, columns from `column` on.
struct Block {
  const Right& x;
  std::int64_t first, count, column;

  // Where the row of key `first + k` is; of a key that is not there, the last's.
  const std::int8_t* row(std::int64_t k) const {
    return x.data + (first + std::min(k, count - 1)) * x.stride + column;
  }
};

// Calls run(block, next) for every kColumns columns of as many keys as a cache holds, one after the
// other; `next` asks for the keys that follow them, a line with each 64 bytes that are read.
template <Ask kAsk, int kColumns, class Run>
[[gnu::always_inline]] inline void for_each_block(const Right& x, Run run) {
  for (std::int64_t first = 0; first < x.rows; first += kKeysInCache) {
    const std::int64_t count = std::min(kKeysInCache, x.rows - first);
    RowsAhead<kAsk> next(x.data + (first + count) * x.stride, x.stride, x.columns);
    for (std::int64_t j = 0; j < x.columns; j += kColumns) run(Block{x, first, count, j}, next);
  }
}

// kRows rows of weights by sixteen columns of the values. Keys that are not there have weights of
// 0.
template <int kDigits, int kRows, Ask kAsk>
QKV_DOT void sum_values(const Digits<kDigits>* p, const Block& block, RowsAhead<kAsk>& next,
                        float* c, std::int64_t c_stride) {
  int32x4_t sum[kRows][4][kDigits] = {};
  RowsAhead<kAsk> ahead = next;  // in registers
  const std::int64_t stride = block.x.stride, count = block.count, first = block.first;
  const std::int8_t* row = block.row(0);
  for (std::int64_t k = 0; k < count; k += kKeys, row += kKeys * stride) {
    ahead.template ask<1>();
    int8x16_t y[kKeys];
    const std::int64_t last = count - 1 - k;
#pragma GCC unroll 4
    for (std::int64_t j = 0; j < kKeys; ++j) y[j] = vld1q_s8(row + std::min(j, last) * stride);
    zip_rows(y);
#pragma GCC unroll 2
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int t = 0; t < kDigits; ++t) {
        const int8x16_t w = vreinterpretq_s8_s32(
            vld1q_dup_s32(reinterpret_cast<const std::int32_t*>(p[i].of[t] + first + k)));
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[i][v][t] = vdotq_s32(sum[i][v][t], y[v], w);
      }
    }
  }
  next = ahead;
#pragma GCC unroll 2
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      float* to = c + i * c_stride + block.column + 4 * v;
      const float32x4_t before = first == 0 ? vdupq_n_f32(0) : vld1q_f32(to);
      vst1q_f32(to, vfmaq_n_f32(before, joined(sum[i][v]), p[i].scale));
    }
  }
}

template <int kDigits, int kRows, Ask kAsk>
QKV_DOT void sum_rows(const Digits<kDigits>* p, const Right& x, float* c, std::int64_t c_stride) {
  for_each_block<kAsk, 16>(x, [&](const Block& block, RowsAhead<kAsk>& next) {
    sum_values<kDigits, kRows>(p, block, next, c, c_stride);
  });
}

template <int kDigits>
QKV_DOT void values(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  constexpr decltype(&sum_rows<kDigits, 1, Ask::near>) kRuns[2][2] = {
      {sum_rows<kDigits, 1, Ask::near>, sum_rows<kDigits, 1, Ask::far>},
      {sum_rows<kDigits, 2, Ask::near>, sum_rows<kDigits, 2, Ask::both>}};
  Digits<kDigits> digits[2];
  for (std::int64_t i = 0; i < p.rows; i += 2) {
    const std::int64_t rows = std::min<std::int64_t>(2, p.rows - i);
    for (std::int64_t r = 0; r < rows; ++r)
      digits[r].set(p.data + (i + r) * p.stride, (x.rows + 15) / 16 * 16);
    kRuns[rows - 1][x.from_memory](digits, x, c + i * c_stride, c_stride);
  }
}

// --- SMMLA ---

constexpr std::int64_t kStep = 8;  // of depth, or keys: a cell holds two rows of them

// Two rows as cells, [digit][eight of depth][row][8]. A second row that is not there is 0.
template <int kDigits>
struct PairOfRows {
  alignas(16) std::int8_t of[kDigits][2 * Int8Decode::kMostDepth];
  float scale[2];

  void set(const Left& x, std::int64_t first, std::int64_t count) {
    Digits<kDigits> row[2];
    row[0].set(x.data + first * x.stride, count);
    scale[0] = row[0].scale;
    scale[1] = 0;
    if (first + 1 < x.rows) {
      row[1].set(x.data + (first + 1) * x.stride, count);
      scale[1] = row[1].scale;
    }
    for (int t = 0; t < kDigits; ++t) {
      for (std::int64_t k = 0; k < count; k += kStep) {
        const int8x8_t second = scale[1] == 0 ? vdup_n_s8(0) : vld1_s8(row[1].of[t] + k);
        vst1q_s8(of[t] + 2 * k, vcombine_s8(vld1_s8(row[0].of[t] + k), second));
      }
    }
  }

  // Two columns of the two rows of c, written or added to; `both` rows are there.
  void put(const int32x4_t (&sum)[kDigits], bool both, bool add, float* c,
           std::int64_t c_stride) const {
    const float32x4_t scales = vcombine_f32(vdup_n_f32(scale[0]), vdup_n_f32(scale[1]));
    const float32x4_t x = vmulq_f32(joined(sum), scales);
    const float32x2_t zero = vdup_n_f32(0);
    vst1_f32(c, vadd_f32(add ? vld1_f32(c) : zero, vget_low_f32(x)));
    c += c_stride;
    if (both) vst1_f32(c, vadd_f32(add ? vld1_f32(c) : zero, vget_high_f32(x)));
  }
};

// kPairs pairs of rows against eight keys.
template <int kDigits, int kPairs, Ask kAsk>
QKV_I8MM void score_pairs(const PairOfRows<kDigits>* q, const std::int8_t* keys,
                          std::int64_t stride, std::int64_t depth, std::int64_t rows, float* c,
                          std::int64_t c_stride) {
  int32x4_t sum[kPairs][4][kDigits] = {};
  RowsAhead<kAsk> next(keys + kRowsAhead * stride, stride, depth);
  for (std::int64_t k = 0; k < depth; k += 2 * kStep) {
    next.template ask<2>();
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64x2_t x0 = vreinterpretq_s64_s8(vld1q_s8(keys + 2 * j * stride + k));
      const int64x2_t x1 = vreinterpretq_s64_s8(vld1q_s8(keys + (2 * j + 1) * stride + k));
      const int8x16_t low = vreinterpretq_s8_s64(vzip1q_s64(x0, x1));
      const int8x16_t high = vreinterpretq_s8_s64(vzip2q_s64(x0, x1));
#pragma GCC unroll 2
      for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 3
        for (int t = 0; t < kDigits; ++t) {
          const std::int8_t* cell = q[i].of[t] + 2 * k;
          sum[i][j][t] = vmmlaq_s32(sum[i][j][t], vld1q_s8(cell), low);
          sum[i][j][t] = vmmlaq_s32(sum[i][j][t], vld1q_s8(cell + 16), high);
        }
      }
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    for (int j = 0; j < 4; ++j) {
      q[i].put(sum[i][j], 2 * i + 1 < rows, false, c + 2 * i * c_stride + 2 * j, c_stride);
    }
  }
}

template <int kDigits>
QKV_I8MM void scores_of_pairs(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  if (q.rows == 1) return scores<kDigits>(q, keys, c, c_stride);
  constexpr decltype(&score_pairs<kDigits, 1, Ask::near>) kRuns[2][2] = {
      {score_pairs<kDigits, 1, Ask::near>, score_pairs<kDigits, 1, Ask::both>},
      {score_pairs<kDigits, 2, Ask::near>, score_pairs<kDigits, 2, Ask::both>}};
  PairOfRows<kDigits> pairs[2];
  for (std::int64_t i = 0; i < q.rows; i += 4) {
    const std::int64_t rows = std::min<std::int64_t>(4, q.rows - i);
    for (std::int64_t r = 0; r < rows; r += 2) pairs[r / 2].set(q, i + r, keys.columns);
    const auto run = kRuns[rows > 2][keys.from_memory];
    std::int64_t j = 0;
    for (; j + kStep <= keys.rows; j += kStep) {
      run(pairs, keys.data + j * keys.stride, keys.stride, keys.columns, rows, c + i * c_stride + j,
          c_stride);
    }
    if (j == keys.rows) continue;
    alignas(16) std::int8_t last[kStep * Int8Decode::kMostDepth] = {};  // zeros where there is none
    for (std::int64_t k = 0; j + k < keys.rows; ++k) {
      std::copy_n(keys.data + (j + k) * keys.stride, keys.columns, last + k * keys.columns);
    }
    float eight[4 * kStep];
    run(pairs, last, keys.columns, keys.columns, rows, eight, kStep);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(eight + r * kStep, keys.rows - j, c + (i + r) * c_stride + j);
    }
  }
}

// Eight rows of eight bytes to four cells of two columns, each along the eight rows.
inline void zip_cells(const int8x16_t (&x)[kStep], int8x16_t (&cell)[4]) {
  int16x8_t two[4];  // eight columns of two rows
  for (int i = 0; i < 4; ++i) two[i] = vreinterpretq_s16_s8(vzip1q_s8(x[2 * i], x[2 * i + 1]));
  int32x4_t low[2], high[2];  // four columns of four rows
  for (int i = 0; i < 2; ++i) {
    low[i] = vreinterpretq_s32_s16(vzip1q_s16(two[2 * i], two[2 * i + 1]));
    high[i] = vreinterpretq_s32_s16(vzip2q_s16(two[2 * i], two[2 * i + 1]));
  }
  cell[0] = vreinterpretq_s8_s32(vzip1q_s32(low[0], low[1]));
  cell[1] = vreinterpretq_s8_s32(vzip2q_s32(low[0], low[1]));
  cell[2] = vreinterpretq_s8_s32(vzip1q_s32(high[0], high[1]));
  cell[3] = vreinterpretq_s8_s32(vzip2q_s32(high[0], high[1]));
}

// kPairs pairs of rows of weights by eight columns of the values. Keys that are not there have
// weights of 0.
template <int kDigits, int kPairs, Ask kAsk>
QKV_I8MM void sum_pairs(const PairOfRows<kDigits>* p, const Block& block, RowsAhead<kAsk>& next,
                        std::int64_t rows, float* c, std::int64_t c_stride) {
  int32x4_t sum[kPairs][4][kDigits] = {};
  RowsAhead<kAsk> ahead = next;  // in registers
  const std::int64_t stride = block.x.stride, count = block.count, first = block.first;
  const std::int8_t* row = block.row(0);
  for (std::int64_t k = 0; k < count; k += kStep, row += kStep * stride) {
    ahead.template ask<1>();
    int8x16_t y[kStep], cell[4];
    if (k + kStep <= count) {
#pragma GCC unroll 8
      for (int j = 0; j < kStep; ++j) {
        y[j] = vcombine_s8(vld1_s8(row + j * stride), vdup_n_s8(0));
      }
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < kStep; ++j) {
        y[j] = vcombine_s8(vld1_s8(block.row(k + j)), vdup_n_s8(0));
      }
    }
    zip_cells(y, cell);
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 3
      for (int t = 0; t < kDigits; ++t) {
        const int8x16_t w = vld1q_s8(p[i].of[t] + 2 * (first + k));
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[i][v][t] = vmmlaq_s32(sum[i][v][t], w, cell[v]);
      }
    }
  }
  next = ahead;
  for (int i = 0; i < kPairs; ++i) {
    for (int v = 0; v < 4; ++v) {
      p[i].put(sum[i][v], 2 * i + 1 < rows, first > 0, c + 2 * i * c_stride + block.column + 2 * v,
               c_stride);
    }
  }
}

template <int kDigits, int kPairs, Ask kAsk>
QKV_I8MM void sum_all_pairs(const PairOfRows<kDigits>* p, const Right& x, std::int64_t rows,
                            float* c, std::int64_t c_stride) {
  for_each_block<kAsk, 8>(x, [&](const Block& block, RowsAhead<kAsk>& next) {
    sum_pairs<kDigits, kPairs>(p, block, next, rows, c, c_stride);
  });
}

template <int kDigits>
QKV_I8MM void values_of_pairs(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  if (p.rows == 1) return values<kDigits>(p, x, c, c_stride);
  constexpr decltype(&sum_all_pairs<kDigits, 1, Ask::near>) kRuns[2][2] = {
      {sum_all_pairs<kDigits, 1, Ask::near>, sum_all_pairs<kDigits, 1, Ask::both>},
      {sum_all_pairs<kDigits, 2, Ask::near>, sum_all_pairs<kDigits, 2, Ask::both>}};
  PairOfRows<kDigits> pairs[2];
  for (std::int64_t i = 0; i < p.rows; i += 4) {
    const std::int64_t rows = std::min<std::int64_t>(4, p.rows - i);
    for (std::int64_t r = 0; r < rows; r += 2) {
      pairs[r / 2].set(p, i + r, (x.rows + 15) / 16 * 16);
    }
    kRuns[rows > 2][x.from_memory](pairs, x, rows, c + i * c_stride, c_stride);
  }
}

template <int kDigits>
constexpr Int8Decode kDotDecode{.scores = scores<kDigits>, .values = values<kDigits>};
template <int kDigits>
constexpr Int8Decode kPairDecode{.scores = scores_of_pairs<kDigits>,
                                 .values = values_of_pairs<kDigits>};

}  // namespace

const Int8Decode* neon_int8_decode(int digits) {
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return nullptr;
  const bool pairs = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  if (digits == 2) return pairs ? &kPairDecode<2> : &kDotDecode<2>;
  return pairs ? &kPairDecode<3> : &kDotDecode<3>;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const Int8Decode* neon_int8_decode(int) { return nullptr; }

}  // namespace qkv::cpu

#endif
