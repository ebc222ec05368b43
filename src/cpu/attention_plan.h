// What forward, backward and weights have in common before any arithmetic: where rows lie, and the
// bias along diagonals.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/attention_problem.h"
#include "cpu/scratch.h"

namespace qkv::cpu {

// Rows of a [B, H, S, D] tensor for one (batch, head), from its first row on.
struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0, step = 1;  // between rows and within a row, in elements

  std::byte* row(std::int64_t i) const {
    return data + i * stride * static_cast<std::int64_t>(size_of(dtype));
  }
  Rows from(std::int64_t i) const { return {row(i), dtype, stride, step}; }
};
Rows rows_of(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t first_row);

// The larger one; NaN stays.
inline float larger(float a, float b) { return std::isnan(a) || b <= a ? a : b; }

// A row's largest score. The sum of its weights knows of NaN, which its maximum does not.
inline float largest_score(float maximum, double total) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return std::isnan(total) && maximum != kInfinity ? std::nanf("") : maximum;
}

// Scores are a positive scale times q . k and nothing else: then rows of a tile may stay q . k, and
// the scale is left to the exponential, if it is large enough to divide by.
inline constexpr float kLeastScale = 1e-30f;
inline bool is_plain(const AttentionProblem& problem) {
  return problem.scale > kLeastScale && problem.softcap == 0 && !problem.bias.defined() &&
         !problem.has_diagonal_bias();
}

// ALiBi and relative-position biases depend on j - (i + o) alone: one array per (sequence, head),
// in which the bias of row i at keys j, j+1, ... is contiguous.
class DiagonalBias {
 public:
  // `slack` more elements on either side may be read (not used) by whole vectors.
  DiagonalBias(const AttentionProblem& problem, std::int64_t sequence, std::int64_t slack);

  bool defined() const { return defined_; }
  void set_head(std::int64_t head);
  const float* at(std::int64_t row, std::int64_t key) const {
    return values_.get() + slack_ + index(row, key);
  }
  // The diagonal of a pair.
  std::int64_t index(std::int64_t row, std::int64_t key) const { return key - row + rows_ - 1; }
  std::int64_t diagonals() const { return rows_ + keys_ - 1; }
  // j - (i + o) of a diagonal, and its bucket.
  std::int64_t relative(std::int64_t diagonal) const { return diagonal - (rows_ - 1) - offset_; }
  std::int64_t bucket(std::int64_t diagonal) const { return buckets_[diagonal]; }

 private:
  const AttentionProblem& problem_;
  std::int64_t sequence_, slack_, rows_, keys_, offset_;
  bool defined_;
  std::vector<std::int64_t> buckets_;  // of each diagonal, for a table
  Scratch<float> values_;
};

// keep[j] = 1 / (1 - rate) or 0 for keys [begin, begin + count) of pair row (b, h, i); `begin` is
// a multiple of 32.
void dropout_row(const AttentionProblem& problem, std::int64_t sequence, std::int64_t head,
                 std::int64_t row, std::int64_t begin, std::int64_t count, float* keep);

}  // namespace qkv::cpu
