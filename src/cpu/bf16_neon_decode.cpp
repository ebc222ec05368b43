// Decoding in bf16 on Arm: BFDOT for one row, BFMMLA for more.
#include "cpu/decode_engine.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <algorithm>

#include "cpu/attention_engine.h"
#include "cpu/bf16_neon-inl.h"
#include "cpu/prefetch.h"
#include "cpu/scratch.h"

namespace qkv::cpu {
namespace bf16_neon {
namespace {

using Left = DecodeEngine::Left;
using Right = DecodeEngine::Right;

constexpr std::int64_t kKeysAtOnce = 8;
constexpr std::int64_t kBlocksAhead = 2;
constexpr std::int64_t kKeysInCache = 64;  // of values: rows walked column by column
// Keys and values that come from memory are asked for so many rows earlier. From a cache they would
// come soon enough, and asking twice takes 10 % longer.
constexpr std::int64_t kLaterRows = 64;

// Up to eight rows, copied to where all eight and a multiple of 8 columns are, zeros for the rest.
class Padded {
 public:
  const bf16* data() { return room_.get(); }

  Right copy(const Right& x, std::int64_t first) {
    const std::int64_t width = (x.columns + 7) / 8 * 8;
    bf16* to = room_.get();
    for (std::int64_t r = 0; r < kKeysAtOnce; ++r, to += width) {
      const bool present = first + r < x.rows;
      if (present) std::copy_n(x.data + (first + r) * x.stride, x.columns, to);
      std::fill(to + (present ? x.columns : 0), to + width, bf16());
    }
    return {room_.get(), width, kKeysAtOnce, width};
  }

 private:
  Room<bf16, kKeysAtOnce * DecodeEngine::kMostDepth> room_;
};

template <std::int64_t kLater>
RowsAhead<kLater> rows_ahead(const bf16* first, const Right& x) {
  return {first, 2 * x.stride, 2 * x.columns};
}

// Calls step(k, key) for k = 0, 8, ... with key(j) = elements k .. k + 7 of key j of eight.
template <std::int64_t kLater, class Step>
QKV_INLINE void walk_keys(const bf16* first, const Right& keys, Step step) {
  auto next = rows_ahead<kLater>(first + kBlocksAhead * kKeysAtOnce * keys.stride, keys);
  for (std::int64_t k = 0; k < keys.columns; k += 8) {
    next.template ask<2>();  // 16 bytes of each of eight keys
    step(k, [&](int j) { return load(first + j * keys.stride + k); });
  }
}

// 2 * kPairs rows against eight keys, paired into cells on the way. Few rows mean few sums, so the
// two halves of a load go to sums of their own.
template <std::int64_t kLater, int kPairs>
void score_block(const bf16* a, const bf16* first, const Right& keys, float* c,
                 std::int64_t c_stride) {
  constexpr int kHalves = kPairs <= 2 ? 2 : 1;
  const std::int64_t strip = 2 * keys.columns;
  Sums sum[kHalves][kPairs][4] = {};
  walk_keys<kLater>(first, keys, [&](std::int64_t k, auto key) {
    unrolled<4>([&](auto j) {
      const Cell x0 = key(2 * j), x1 = key(2 * j + 1);
      const Cell y0 = lower(x0, x1), y1 = upper(x0, x1);
      unrolled<kPairs>([&](auto i) {
        const bf16* cell = a + i * strip + 2 * k;
        Sums &low = sum[0][i][j], &high = sum[kHalves - 1][i][j];
        low = vbfmmlaq_f32(low, load(cell), y0);
        high = vbfmmlaq_f32(high, load(cell + 8), y1);
      });
    });
  });
  if constexpr (kHalves == 2) {
    unrolled<kPairs>([&](auto i) {
      unrolled<4>([&](auto j) { sum[0][i][j] = vaddq_f32(sum[0][i][j], sum[1][i][j]); });
    });
  }
  put_block<false>(c, c_stride, sum[0]);
}

// One row `q` against eight keys: BFDOT reads both as they lie.
template <std::int64_t kLater>
void score_row(const bf16* q, const bf16* first, const Right& keys, float* c, std::int64_t) {
  Sums sum[8] = {};
  walk_keys<kLater>(first, keys, [&](std::int64_t k, auto key) {
    const Cell x = load(q + k);
    unrolled<8>([&](auto j) { sum[j] = vbfdotq_f32(sum[j], x, key(j)); });
  });
  unrolled<2>([&](auto half) {
    const Sums* s = sum + 4 * half;
    vst1q_f32(c + 4 * half, vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])));
  });
}

void pack_rows(const Left& x, std::int64_t depth, bf16* cells) {
  for (std::int64_t i = 0; i < x.rows; i += 2) {
    const bf16* row = x.data + i * x.stride;
    pack_pair(row, row + x.stride, depth, cells + i * depth, 8);
  }
}

template <std::int64_t kLater>
constexpr decltype(&score_row<0>) kScoreBlocks[] = {score_row<kLater>, score_block<kLater, 1>,
                                                    score_block<kLater, 2>, score_block<kLater, 3>,
                                                    score_block<kLater, 4>};

void scores(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  const std::int64_t pairs = q.rows / 2 + (q.rows > 1 && q.rows % 2 == 1);
  const auto block = (keys.from_memory ? kScoreBlocks<kLaterRows> : kScoreBlocks<0>)[pairs];
  Room<bf16, DecodeEngine::kMostRows * DecodeEngine::kMostDepth> cells;
  const bf16* a = q.data;
  if (q.rows > 1) {
    pack_rows(q, (keys.columns + 7) / 8 * 8, cells.get());
    a = cells.get();
  }
  std::int64_t j = 0;
  if (keys.columns % 8 == 0) {
    for (; j + kKeysAtOnce <= keys.rows; j += kKeysAtOnce) {
      block(a, keys.data + j * keys.stride, keys, c + j, c_stride);
    }
  }
  Padded padded;
  for (; j < keys.rows; j += kKeysAtOnce) {
    block(a, padded.data(), padded.copy(keys, j), c + j, c_stride);
  }
}

// Calls step(k, value) for k = 0, kStep, ... with value(r, v) = columns 8 v .. of key k + r.
template <int kStep, int kVectors, std::int64_t kLater, class Step>
QKV_INLINE void walk_values(const Right& x, std::int64_t column, RowsAhead<kLater>& next,
                            Step step) {
  const bf16* row = x.data + column;
  for (std::int64_t k = 0; k < x.rows; k += kStep, row += kStep * x.stride) {
    next.template ask<kStep * kVectors / 4>();
    step(k, [&](int r, int v) { return load(row + r * x.stride + 8 * v); });
  }
}

// kRows rows by 8 * kVectors columns: two keys zipped are what BFDOT sums over.
template <int kRows, int kVectors, std::int64_t kLater>
void value_rows(const Left& p, const Right& x, std::int64_t column, RowsAhead<kLater>& next,
                float* c, std::int64_t c_stride) {
  Sums sum[kRows][2 * kVectors] = {};
  walk_values<8, kVectors>(x, column, next, [&](std::int64_t k, auto value) {
    Cell weight[kRows];
    unrolled<kRows>([&](auto i) { weight[i] = load(p.data + i * p.stride + k); });
    unrolled<4>([&](auto pair) {
      unrolled<kVectors>([&](auto v) {
        const Cell x0 = value(2 * pair, v), x1 = value(2 * pair + 1, v);
        const Cell y0 = zip_lower(x0, x1), y1 = zip_upper(x0, x1);
        unrolled<kRows>([&](auto i) {
          Sums &low = sum[i][2 * v], &high = sum[i][2 * v + 1];
          low = vbfdotq_laneq_f32(low, y0, weight[i], pair);
          high = vbfdotq_laneq_f32(high, y1, weight[i], pair);
        });
      });
    });
  });
  unrolled<kRows>([&](auto i) {
    unrolled<2 * kVectors>([&](auto v) {
      float* to = c + i * c_stride + 4 * v;
      vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum[i][v]));
    });
  });
}

// 2 * kPairs rows by 8 * kVectors columns: four keys transposed are cells for BFMMLA.
template <int kPairs, int kVectors, std::int64_t kLater>
void value_block(const bf16* a, const Right& x, std::int64_t column, RowsAhead<kLater>& next,
                 float* c, std::int64_t c_stride) {
  const std::int64_t strip = 2 * x.rows;
  Sums sum[kVectors][kPairs][4] = {};
  walk_values<4, kVectors>(x, column, next, [&](std::int64_t k, auto value) {
    unrolled<kVectors>([&](auto v) {
      Cell y[4] = {value(0, v), value(1, v), value(2, v), value(3, v)};
      transpose(y);
      unrolled<kPairs>([&](auto i) {
        const Cell w = load(a + i * strip + 2 * k);
        unrolled<4>([&](auto j) { sum[v][i][j] = vbfmmlaq_f32(sum[v][i][j], w, y[j]); });
      });
    });
  });
  unrolled<kVectors>([&](auto v) { put_block<true>(c + 8 * v, c_stride, sum[v]); });
}

// Blocks of kVectors columns while they fit, then single ones.
template <std::int64_t kLater, int kRows>
void values_by_rows(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  auto next = rows_ahead<kLater>(x.data + x.rows * x.stride, x);
  std::int64_t j = 0;
  for (; j + 32 <= x.columns; j += 32) value_rows<kRows, 4>(p, x, j, next, c + j, c_stride);
  for (; j < x.columns; j += 8) value_rows<kRows, 1>(p, x, j, next, c + j, c_stride);
}

template <std::int64_t kLater, int kPairs>
void values_by_pairs(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  constexpr int kVectors = kPairs == 2 ? 2 : 1;
  Room<bf16, 2 * kPairs * kKeysInCache> room;
  bf16* cells = room.get();
  pack_rows(p, x.rows, cells);
  auto next = rows_ahead<kLater>(x.data + x.rows * x.stride, x);
  std::int64_t j = 0;
  for (; j + 8 * kVectors <= x.columns; j += 8 * kVectors) {
    value_block<kPairs, kVectors>(cells, x, j, next, c + j, c_stride);
  }
  for (; j < x.columns; j += 8) value_block<kPairs, 1>(cells, x, j, next, c + j, c_stride);
}

template <std::int64_t kLater>
constexpr decltype(&values_by_rows<0, 1>) kValueRows[] = {
    values_by_rows<kLater, 1>,  values_by_rows<kLater, 2>,  values_by_pairs<kLater, 2>,
    values_by_pairs<kLater, 2>, values_by_pairs<kLater, 3>, values_by_pairs<kLater, 3>,
    values_by_pairs<kLater, 4>, values_by_pairs<kLater, 4>};

void values(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  const auto add = (x.from_memory ? kValueRows<kLaterRows> : kValueRows<0>)[p.rows - 1];
  const std::int64_t whole = x.columns % 8 == 0 ? x.rows / 8 * 8 : 0;
  std::int64_t k = 0;
  while (k < whole) {
    const std::int64_t here = std::min(kKeysInCache, whole - k);
    add({p.data + k, p.stride, p.rows},
        {x.data + k * x.stride, x.stride, here, x.columns, x.from_memory}, c, c_stride);
    k += here;
  }
  Padded padded;
  for (; k < x.rows; k += kKeysAtOnce) {
    add({p.data + k, p.stride, p.rows}, padded.copy(x, k), c, c_stride);
  }
}

constexpr DecodeEngine kDecode{.scores = scores, .values = values};

}  // namespace
}  // namespace bf16_neon

const DecodeEngine* neon_bf16_decode() {
  return neon_bf16_engine() != nullptr ? &bf16_neon::kDecode : nullptr;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const DecodeEngine* neon_bf16_decode() { return nullptr; }

}  // namespace qkv::cpu

#endif
