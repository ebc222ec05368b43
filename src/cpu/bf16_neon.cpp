// The bf16 engine of Arm: tiles by BFMMLA (FEAT_BF16), summed in f32.
//
// Packed B is made of panels of eight columns, cell[k / 4][pair of columns], read front to back.
// A is turned, [pair of rows] cell[k / 4], or packed on the way, a block of rows at a time: all
// pairs of a step together, one stream.
#include "cpu/attention_engine.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <algorithm>

#include "cpu/bf16_neon-inl.h"
#include "cpu/scratch.h"

namespace qkv::cpu {
namespace bf16_neon {
namespace {

constexpr std::int64_t kColumns = 8, kDepth = 8;
constexpr std::int64_t kMostPairs = 6;
constexpr std::int64_t kDepthAtOnce = 768;  // a block of packed A takes 18 KiB of the stack

constexpr std::int64_t round_up8(std::int64_t n) { return (n + 7) / 8 * 8; }

// Some pairs of rows of A. Turned, their cells are `pair` elements apart.
struct Pairs {
  const bf16* cells;
  std::int64_t count, pair;
};

// A block of 2 * kPairs rows by kPanels panels: 4 * kPairs * kPanels sums in registers. At 6 pairs,
// 24 BFMMLA per step of 4 keep a Neoverse-V1 busy for six cycles (four per cycle, latency 5) beside
// ten loads (three per cycle). Few pairs take several panels: enough sums to cover the latency, and
// as many streams from memory, which together are faster than one.
template <bool kTurned, int kPairs, int kPanels>
QKV_INLINE void multiply_block(const Pairs& left, const bf16* b, std::int64_t panel,
                               std::int64_t depth, float* c, std::int64_t c_stride, bool add) {
  const bf16* a = left.cells;
  const std::int64_t pair = kTurned ? left.pair : 8;
  Sums sum[kPanels][kPairs][4] = {};
  for (std::int64_t k = 0; k < depth; k += 4) {
    unrolled<kPanels>([&](auto p) {
      const bf16* cells = b + p * panel;
      const Cell y0 = load(cells), y1 = load(cells + 8), y2 = load(cells + 16),
                 y3 = load(cells + 24);
      unrolled<kPairs>([&](auto i) {
        const Cell x = load(a + i * pair);
        sum[p][i][0] = vbfmmlaq_f32(sum[p][i][0], x, y0);
        sum[p][i][1] = vbfmmlaq_f32(sum[p][i][1], x, y1);
        sum[p][i][2] = vbfmmlaq_f32(sum[p][i][2], x, y2);
        sum[p][i][3] = vbfmmlaq_f32(sum[p][i][3], x, y3);
      });
    });
    a += kTurned ? 8 : 8 * kPairs;
    b += 32;
  }
  unrolled<kPanels>([&](auto p) {
    float* to = c + p * kColumns;
    add ? put_block<true>(to, c_stride, sum[p]) : put_block<false>(to, c_stride, sum[p]);
  });
}

// One row, read where it lies: each four elements stand in both halves of a cell. Its sums land in
// the row after it, too.
template <int kPanels>
void multiply_row(const bf16* a, const bf16* b, std::int64_t panel, std::int64_t depth, float* c,
                  std::int64_t c_stride, bool add) {
  Sums sum[kPanels][1][4] = {};
  for (std::int64_t k = 0; k < depth; k += 4, b += 32) {
    const Cell x = load_twice(a + k);
    unrolled<kPanels>([&](auto p) {
      const bf16* cells = b + p * panel;
      unrolled<4>(
          [&](auto j) { sum[p][0][j] = vbfmmlaq_f32(sum[p][0][j], x, load(cells + 8 * j)); });
    });
  }
  unrolled<kPanels>([&](auto p) {
    float* to = c + p * kColumns;
    add ? put_block<true>(to, c_stride, sum[p]) : put_block<false>(to, c_stride, sum[p]);
  });
}

void multiply_row(const bf16* a, const bf16* b, std::int64_t panel, const TileExtents& size,
                  float* c, std::int64_t c_stride, bool add) {
  constexpr int kPanels = 4;
  std::int64_t j = 0;
  for (; j + kPanels * kColumns <= size.columns; j += kPanels * kColumns, b += kPanels * panel) {
    multiply_row<kPanels>(a, b, panel, size.depth, c + j, c_stride, add);
  }
  for (; j < size.columns; j += kColumns, b += panel) {
    multiply_row<1>(a, b, panel, size.depth, c + j, c_stride, add);
  }
}

// kPairs of them by all columns of B.
template <bool kTurned, int kPairs>
void multiply_columns(const Pairs& a, const bf16* b, std::int64_t panel, const TileExtents& size,
                      float* c, std::int64_t c_stride, bool add) {
  constexpr int kPanels = kPairs == 1 ? 4 : kPairs <= 3 ? 2 : 1;
  std::int64_t j = 0;
  if constexpr (kPanels > 1) {
    for (; j + kPanels * kColumns <= size.columns; j += kPanels * kColumns, b += kPanels * panel) {
      multiply_block<kTurned, kPairs, kPanels>(a, b, panel, size.depth, c + j, c_stride, add);
    }
  }
  for (; j < size.columns; j += kColumns, b += panel) {
    multiply_block<kTurned, kPairs, 1>(a, b, panel, size.depth, c + j, c_stride, add);
  }
}

template <bool kTurned>
void multiply_pairs(const Pairs& a, const bf16* b, std::int64_t panel, const TileExtents& size,
                    float* c, std::int64_t c_stride, bool add) {
  constexpr decltype(&multiply_columns<kTurned, 1>) kOf[kMostPairs] = {
      multiply_columns<kTurned, 1>, multiply_columns<kTurned, 2>, multiply_columns<kTurned, 3>,
      multiply_columns<kTurned, 4>, multiply_columns<kTurned, 5>, multiply_columns<kTurned, 6>};
  kOf[a.count - 1](a, b, panel, size, c, c_stride, add);
}

// Rows of A as they lie, some of their depth at a time.
void pack_and_multiply(const bf16* rows, std::int64_t stride, std::int64_t count, const bf16* b,
                       std::int64_t panel, const TileExtents& size, float* c, std::int64_t c_stride,
                       bool add) {
  Room<bf16, 2 * kMostPairs * kDepthAtOnce> room;
  for (std::int64_t k = 0; k < size.depth; k += kDepthAtOnce) {
    const std::int64_t here = std::min(kDepthAtOnce, size.depth - k);
    for (std::int64_t i = 0; i < count; ++i) {
      const bf16* row = rows + 2 * i * stride + k;
      pack_pair(row, row + stride, here, room.get() + 8 * i, 8 * count);
    }
    multiply_pairs<false>({room.get(), count, 8}, b + k * kColumns, panel, {0, size.columns, here},
                          c, c_stride, add || k > 0);
  }
}

void multiply(const LeftOperand& a, const PackedOperand& b, float* c, std::int64_t c_stride,
              const TileExtents& size, bool accumulate) {
  const auto* left = static_cast<const bf16*>(a.data);
  const auto* panels = static_cast<const bf16*>(b.data);
  const std::int64_t depth = round_up8(size.depth), panel = kColumns * round_up8(b.depth);
  const TileExtents whole{0, size.columns, depth};
  if (size.rows == 1 && !a.turned) {
    return multiply_row(left, panels, panel, whole, c, c_stride, accumulate);
  }
  const std::int64_t pairs = (size.rows + 1) / 2;
  const std::int64_t blocks = (pairs + kMostPairs - 1) / kMostPairs;
  std::int64_t done = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {  // as even as can be: 16 = 6 + 5 + 5
    const std::int64_t count = (pairs - done + blocks - block - 1) / (blocks - block);
    const bf16* from = left + 2 * done * a.stride;
    float* to = c + 2 * done * c_stride;
    if (a.turned) {
      multiply_pairs<true>({from, count, 2 * a.stride}, panels, panel, whole, to, c_stride,
                           accumulate);
    } else {
      pack_and_multiply(from, a.stride, count, panels, panel, whole, to, c_stride, accumulate);
    }
    done += count;
  }
}

void turn(const void* rows, std::int64_t stride, std::int64_t depth, void* to) {
  const auto* row = static_cast<const bf16*>(rows);
  pack_pair(row, row + stride, depth, static_cast<bf16*>(to), 8);
}

void pack_transposed(const void* source, std::int64_t stride, std::int64_t rows,
                     const TileExtents& size, void* packed) {
  const auto* x = static_cast<const bf16*>(source);
  auto* b = static_cast<bf16*>(packed);
  const std::int64_t depth = round_up8(size.depth), whole = size.depth / kDepth * kDepth;
  for (std::int64_t j = 0; j < size.columns; j += kColumns, b += kColumns * depth) {
    for (std::int64_t pair = 0; pair < kColumns; pair += 2) {
      const std::int64_t here = std::clamp<std::int64_t>(rows - j - pair, 0, 2);
      const bf16 *x0 = x + (j + pair) * stride, *x1 = x0 + stride;
      bf16* cells = b + 4 * pair;
      std::int64_t k = 0;
      if (here == 2) {
        pack_pair(x0, x1, whole, cells, 4 * kColumns);
        k = whole;
      }
      for (; k < depth; k += 8) {
        const std::int64_t left = size.depth - k;
        const Cell r0 = here > 0 ? load(x0 + k, left) : zero();
        const Cell r1 = here > 1 ? load(x1 + k, left) : zero();
        store(cells + k * kColumns, lower(r0, r1));
        store(cells + (k + 4) * kColumns, upper(r0, r1));
      }
    }
  }
}

void pack(const void* source, std::int64_t stride, std::int64_t rows, const TileExtents& size,
          void* packed) {
  const auto* x = static_cast<const bf16*>(source);
  const std::int64_t depth = round_up8(size.depth), whole = size.columns / kColumns * kColumns;
  for (std::int64_t k = 0; k < depth; k += 4) {
    const bf16* row = x + k * stride;
    bf16* cells = static_cast<bf16*>(packed) + k * kColumns;
    const auto put = [&](auto row_of) __attribute__((always_inline)) {
      Cell part[4];
      unrolled<4>([&](auto r) { part[r] = row_of(r); });
      transpose(part);
      unrolled<4>([&](auto r) { store(cells + 8 * r, part[r]); });
      cells += kColumns * depth;
    };
    std::int64_t j = 0;
    if (k + 4 <= rows) {
      for (; j < whole; j += kColumns) put([&](int r) { return load(row + r * stride + j); });
    }
    for (; j < size.columns; j += kColumns) {
      put([&](int r) {
        return k + r < rows ? load(row + r * stride + j, size.columns - j) : zero();
      });
    }
  }
}

void store_scaled(const float* from, float factor, std::int64_t count, bf16* to) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Sums low = vmulq_n_f32(vld1q_f32(from + i), factor);
    const Sums high = vmulq_n_f32(vld1q_f32(from + i + 4), factor);
    store(to + i, vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }
  for (; i < count; ++i) to[i] = bf16(from[i] * factor);
}

constexpr AttentionEngine kEngine{.name = "neon_bf16",
                                  .operand = DType::bf16,
                                  .tile_rows = 64,
                                  .tile_keys = 128,
                                  .row_multiple = 2,
                                  .depth_multiple = kDepth,
                                  .column_multiple = kColumns,
                                  .rows_together = 2,
                                  .uses_as_rows = 0,
                                  .pack_transposed = pack_transposed,
                                  .pack = pack,
                                  .turn = turn,
                                  .multiply = multiply,
                                  .store_scaled = store_scaled,
                                  .begin = nullptr,
                                  .end = nullptr};

}  // namespace
}  // namespace bf16_neon

const AttentionEngine* neon_bf16_engine() {
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 ? &bf16_neon::kEngine : nullptr;
}

}  // namespace qkv::cpu

#else

namespace qkv::cpu {

const AttentionEngine* neon_bf16_engine() { return nullptr; }

}  // namespace qkv::cpu

#endif
