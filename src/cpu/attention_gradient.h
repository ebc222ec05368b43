// Pieces of the backward pass that are compiled per SIMD target.
#pragma once

#include <cstdint>
#include <span>

#include "core/attention_problem.h"
#include "cpu/attention_mask.h"
#include "cpu/attention_plan.h"
#include "cpu/scratch.h"

namespace qkv::cpu {

inline constexpr std::int64_t kGradientRows = 64, kGradientKeys = 128;

// What every part of a backward pass reads.
struct GradientInputs {
  const AttentionProblem& problem;
  const AttentionBackward& tensors;
  // Laid out like lse: r_i = dout_i . out_i, and the two numbers that give weights back from
  // scores, p = exp(unit (s - shift)) factor, where unit is that of ScoreRows.
  const float* row_products;
  const float* shifts;
  const float* factors;
};

// Some keys of one (sequence, key head) and the rows that may see them: the unit of work.
struct GradientChunk {
  std::int64_t sequence, key_head;
  std::int64_t first_key, keys;
  std::int64_t first_row, rows;
  // This chunk's part of gradients to which others add as well; null where it owns them, and stores
  // them itself.
  float* dq;          // [group, rows, D]
  float* dk;          // [keys, D]
  float* dv;          // [keys, Dv]
  double* diagonals;  // [group, diagonals]: sums of ds along diagonals, or null
};
void run_gradient_chunk(const GradientInputs& in, const GradientChunk& chunk);

// ds of (sequence, head) for rows [first_row, first_row + rows) and keys [first_key, first_key +
// keys), at most kGradientRows and kGradientKeys of them, is added to sums[i * row_step + j *
// key_step]; a step of 0 sums over that axis.
struct BiasTile {
  std::int64_t sequence, head;
  std::int64_t first_row, rows, first_key, keys;
  double* sums;
  std::int64_t row_step, key_step;
};
void add_bias_gradient(const GradientInputs& in, const BiasTile& tile, BlockMask& mask);

// r_i of all rows of (sequence, head).
void row_products(const AttentionProblem& problem, const AttentionBackward& tensors,
                  std::int64_t sequence, std::int64_t head, float* products);
// Some rows of a gradient, [rows, columns] one after the other.
struct GradientPart {
  const float* data;
  std::int64_t first_row, rows;
};
// Rows of a gradient = scale * sum of the parts that have them.
struct StoredGradient {
  std::int64_t rows, columns;
  float scale;
};
void store_gradient(std::span<const GradientPart> parts, const StoredGradient& gradient,
                    const Rows& to);

// Index of row 0 of (sequence, head) in tensors shaped like lse.
inline std::int64_t lse_index(const AttentionProblem& problem, const AttentionBackward& tensors,
                              std::int64_t sequence, std::int64_t head) {
  const AttentionSequence& s = problem.sequences[sequence];
  return (s.q_batch * problem.heads + head) * tensors.lse.size(2) + s.q_start;
}

}  // namespace qkv::cpu
