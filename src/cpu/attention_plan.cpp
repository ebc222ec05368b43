#include "cpu/attention_plan.h"

#include <cmath>

#include "core/philox.h"

namespace qkv::cpu {

Rows rows_of(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t first_row) {
  const std::int64_t first = batch * x.stride(0) + head * x.stride(1) + first_row * x.stride(2);
  return {static_cast<std::byte*>(x.raw()) + first * static_cast<std::int64_t>(size_of(x.dtype())),
          x.dtype(), x.stride(2), x.stride(3)};
}

DiagonalBias::DiagonalBias(const AttentionProblem& problem, std::int64_t sequence,
                           std::int64_t slack)
    : problem_(problem),
      sequence_(sequence),
      slack_(slack),
      rows_(problem.sequences[sequence].q_rows),
      keys_(problem.sequences[sequence].k_rows),
      offset_(problem.sequences[sequence].offset),
      defined_(problem.has_diagonal_bias() && rows_ > 0 && keys_ > 0) {
  if (!defined_) return;
  values_ = Scratch<float>(diagonals() + 2 * slack_);
  std::fill_n(values_.get(), diagonals() + 2 * slack_, 0.0f);
  if (!problem.table.defined()) return;
  buckets_.resize(static_cast<std::size_t>(diagonals()));
  for (std::int64_t t = 0; t < diagonals(); ++t) {
    buckets_[t] = relative_bucket(relative(t), problem.table.size(0), problem.bidirectional,
                                  problem.max_distance);
  }
}

void DiagonalBias::set_head(std::int64_t head) {
  if (!defined_) return;
  float* values = values_.get() + slack_;
  if (problem_.table.defined()) {
    const float* table = problem_.table.data<float>() + head;
    const std::int64_t heads = problem_.heads;
    for (std::int64_t t = 0; t < diagonals(); ++t) values[t] = table[buckets_[t] * heads];
  } else {
    const Tensor& slopes = problem_.slopes;
    const float slope =
        slopes.data<float>()[sequence_ * slopes.stride(0) + head * slopes.stride(1)];
    for (std::int64_t t = 0; t < diagonals(); ++t) {
      values[t] = -slope * static_cast<float>(std::abs(relative(t)));
    }
  }
}

void dropout_row(const AttentionProblem& problem, std::int64_t sequence, std::int64_t head,
                 std::int64_t row, std::int64_t begin, std::int64_t count, float* keep) {
  const std::uint32_t threshold = pair_threshold(problem.dropout);
  const float kept = 1 / (1 - problem.dropout);
  const auto shift = static_cast<std::uint32_t>(row / 8 % 2 * 16);
  for (std::int64_t j = 0; j < count; j += 32) {
    float found[32];
    for (int draw = 0; draw < 8; ++draw) {
      const auto words = philox_words<kPairRounds>(
          pair_counter(sequence, head, row, begin + j + draw), problem.seed);
      for (int word = 0; word < 4; ++word) {
        found[8 * word + draw] = (words[word] >> shift & 0xffff) >= threshold ? kept : 0.0f;
      }
    }
    std::copy_n(found, std::min<std::int64_t>(32, count - j), keep + j);
  }
}

}  // namespace qkv::cpu
