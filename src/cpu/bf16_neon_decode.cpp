// Decoding in bf16 on Arm: BFDOT for one row, BFMMLA for more.
#include "cpu/decode_engine.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include "cpu/attention_engine.h"
#include "cpu/bf16_neon-inl.h"
#include "cpu/neon_decode-inl.h"

namespace qkv::cpu {
namespace bf16_neon {
namespace {

using namespace neon_decode;

constexpr std::int64_t kKeysInCache = 32;  // few, since a run of them costs little besides

// 2 * kPairs rows against eight keys, paired into cells on the way. Few rows mean few sums, so the
// two halves of a load go to sums of their own.
template <Ask kAsk, int kPairs>
void score_block(const Bits* a, const Bits* first, const Right& keys, float* c,
                 std::int64_t c_stride) {
  constexpr int kHalves = kPairs <= 2 ? 2 : 1;
  const std::int64_t strip = 2 * keys.columns;
  Sums sum[kHalves][kPairs][4] = {};
  walk_keys<kAsk, 8>(first, keys, [&](std::int64_t k, auto key) {
    unrolled<4>([&](auto j) {
      const Cell x0 = load(key(2 * j)), x1 = load(key(2 * j + 1));
      const Cell y0 = lower(x0, x1), y1 = upper(x0, x1);
      unrolled<kPairs>([&](auto i) {
        const Bits* cell = a + i * strip + 2 * k;
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
void score_row(const Bits* q, const Bits* first, const Right& keys, std::int64_t apart, float* c) {
  Sums sum[8] = {};
  for (std::int64_t k = 0; k < keys.columns; k += 8) {
    const Cell x = load(q + k);
    unrolled<8>([&](auto j) {
      const Bits* key = first + (j / 2 * apart + j % 2) * keys.stride + k;
      sum[j] = vbfdotq_f32(sum[j], x, load(key));
    });
  }
  store_pairs(sum, c, apart);
}

void pack_rows(const Left& x, std::int64_t depth, Bits* cells) {
  for (std::int64_t i = 0; i < x.rows; i += 2) {
    const Bits* row = x.data + i * x.stride;
    pack_pair(row, row + x.stride, depth, cells + i * depth, 8);
  }
}

// For few rows memory sets the pace, for more the products do.
template <Ask kFew, Ask kMany>
constexpr decltype(&score_block<kFew, 1>) kScoreBlocks[] = {
    score_block<kFew, 1>, score_block<kMany, 2>, score_block<kMany, 3>, score_block<kMany, 4>};

void scores(const Left& q, const Right& keys, float* c, std::int64_t c_stride) {
  if (q.rows == 1) return score_by_quarters(q.data, keys, c, score_row);
  const auto& blocks =
      keys.from_memory ? kScoreBlocks<Ask::far, Ask::both> : kScoreBlocks<Ask::near, Ask::near>;
  const auto block = blocks[q.rows / 2 - 1];
  Room<Bits, DecodeEngine::kMostRows * DecodeEngine::kMostDepth> cells;
  pack_rows(q, (keys.columns + 7) / 8 * 8, cells.get());
  const Bits* a = cells.get();
  for_each_eight(keys, [&](const Bits* first, const Right& eight, std::int64_t j) {
    block(a, first, eight, c + j, c_stride);
  });
}

// kRows rows by 8 * kVectors columns: two keys zipped are what BFDOT sums over.
template <int kRows, int kVectors, Ask kAsk>
void value_rows(const Left& p, const Right& x, std::int64_t column, RowsAhead<kAsk>& next, float* c,
                std::int64_t c_stride) {
  Sums sum[kRows][2 * kVectors] = {};
  walk_values<8, kVectors>(x, column, next, [&](std::int64_t k, auto value) {
    Cell weight[kRows];
    unrolled<kRows>([&](auto i) { weight[i] = load(p.data + i * p.stride + k); });
    unrolled<4>([&](auto pair) {
      unrolled<kVectors>([&](auto v) {
        const Cell x0 = load(value(2 * pair, v)), x1 = load(value(2 * pair + 1, v));
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

template <int kVectors, int kPairs>
QKV_INLINE void copy_sums(const Sums (*from)[kPairs][4], Sums (*to)[kPairs][4]) {
  unrolled<kVectors>([&](auto v) {
    unrolled<kPairs>([&](auto i) { unrolled<4>([&](auto j) { to[v][i][j] = from[v][i][j]; }); });
  });
}

// 2 * kPairs rows by 8 * kVectors columns: four keys transposed are cells for BFMMLA. Sums go on
// from `sums`, as BFMMLA has them.
template <int kPairs, int kVectors, Ask kAsk>
QKV_INLINE void value_block(const Bits* a, const Right& x, std::int64_t column,
                            RowsAhead<kAsk>& next, Sums (*sums)[kPairs][4]) {
  const std::int64_t strip = 2 * x.rows;
  Sums sum[kVectors][kPairs][4];
  copy_sums<kVectors, kPairs>(sums, sum);
  walk_values<4, kVectors>(x, column, next, [&](std::int64_t k, auto value) {
    unrolled<kVectors>([&](auto v) {
      Cell y[4] = {load(value(0, v)), load(value(1, v)), load(value(2, v)), load(value(3, v))};
      transpose(y);
      unrolled<kPairs>([&](auto i) {
        const Cell w = load(a + i * strip + 2 * k);
        unrolled<4>([&](auto j) { sum[v][i][j] = vbfmmlaq_f32(sum[v][i][j], w, y[j]); });
      });
    });
  });
  copy_sums<kVectors, kPairs>(sum, sums);
}

// Blocks of kVectors columns while they fit, then single ones.
template <Ask kAsk, int kRows>
void values_by_rows(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  for_each_run<kKeysInCache>(p, x, [&](const Left& weights, const Right& run) {
    auto next = rows_ahead<kAsk>(run.data + run.rows * run.stride, run);
    std::int64_t j = 0;
    for (; j + 32 <= run.columns; j += 32) {
      value_rows<kRows, 4>(weights, run, j, next, c + j, c_stride);
    }
    for (; j < run.columns; j += 8) value_rows<kRows, 1>(weights, run, j, next, c + j, c_stride);
  });
}

template <Ask kAsk, int kPairs>
void values_by_pairs(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  constexpr int kVectors = kPairs == 2 ? 2 : 1;
  Room<Sums[kPairs][4], DecodeEngine::kMostDepth / 8> sums_room;
  Room<Bits, 2 * kPairs * kKeysInCache> room;
  Bits* const cells = room.get();
  auto* const sums = sums_room.get();
  const std::int64_t vectors = (x.columns + 7) / 8;
  std::fill_n(&sums[0][0][0], vectors * kPairs * 4, vdupq_n_f32(0));
  for_each_run<kKeysInCache>(p, x, [&](const Left& weights, const Right& run) {
    pack_rows(weights, run.rows, cells);
    auto next = rows_ahead<kAsk>(run.data + run.rows * run.stride, run);
    std::int64_t v = 0;
    for (; v + kVectors <= vectors; v += kVectors) {
      value_block<kPairs, kVectors>(cells, run, 8 * v, next, sums + v);
    }
    for (; v < vectors; ++v) value_block<kPairs, 1>(cells, run, 8 * v, next, sums + v);
  });
  for (std::int64_t v = 0; v < vectors; ++v) put_block<true>(c + 8 * v, c_stride, sums[v]);
}

template <Ask kFew, Ask kMany>
constexpr decltype(&values_by_rows<kFew, 1>) kValueRows[] = {
    values_by_rows<kFew, 1>, values_by_rows<kFew, 2>, values_by_pairs<kMany, 2>,
    values_by_pairs<kMany, 3>, values_by_pairs<kMany, 4>};

void values(const Left& p, const Right& x, float* c, std::int64_t c_stride) {
  const auto& rows =
      x.from_memory ? kValueRows<Ask::far, Ask::both> : kValueRows<Ask::near, Ask::near>;
  rows[p.rows == 1 ? 0 : p.rows / 2](p, x, c, c_stride);
}

constexpr DecodeEngine kDecode{
    .dtype = DType::bf16, .weight_unit = 1, .scores = scores, .values = values};

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
