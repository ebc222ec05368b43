// Attention straight from its definition (include/qkv/attention.h, docs/attention.md): every score
// in memory, one loop per sum, no tiles. Shares no code with src/.
//
// The same formulas run in two arithmetics:
//   exact   float64 throughout, on the values the tensors hold (already rounded to their dtype)
//   plain   what three separate operators give: f32 accumulation, and the scores, the weights and
//           the product each rounded to the dtype of q. A kernel may err twice as much as this.
//
// What the contract leaves open is settled here: the entropy of a row with one visible key, divided
// by log(1), counts as 0; a bias of -inf hides, so such a pair counts in no statistic; a head where
// no row sees a key has max_logit -inf and 0 for every mean; weights in statistics are those before
// dropout.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "support/attention_case.h"

namespace qkv::test {

// Values that broadcast to [B, H, Sq, Sk].
struct Broadcast {
  std::vector<double> values{};
  std::array<std::int64_t, 4> strides{};

  bool defined() const { return !values.empty(); }
  std::size_t index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(b * strides[0] + h * strides[1] + i * strides[2] +
                                    j * strides[3]);
  }
};

struct ReferenceSequence {
  std::int64_t q_start = 0, k_start = 0;    // first row, packed
  std::int64_t q_rows = 0, k_rows = 0;      // rows present
  std::int64_t q_length = 0, k_length = 0;  // rows that see, keys that are seen
  std::int64_t offset = 0;                  // o: query i stands at key position i + o
};

// A call as numbers. q, k, v and the rest are row-major in the shape of their tensors, and may be
// changed in place, which is how finite differences are taken.
struct ReferenceProblem {
  DType dtype = DType::f32;
  bool packed = false;
  std::int64_t heads = 0, key_heads = 0, head_size = 0, value_size = 0;
  std::int64_t q_rows = 0, k_rows = 0;  // Sq and Sk, or the T of packed sequences
  std::vector<ReferenceSequence> sequences{};
  std::vector<double> q{}, k{}, v{}, dout{}, dlse{}, dentropy{};
  bool causal = false;
  std::int64_t left = -1, right = -1;
  Broadcast allowed{}, bias{}, slopes{};  // slopes as [B, H, 1, 1]
  std::vector<double> global{};           // [B, Sk]
  std::vector<double> table{};            // [buckets, H]
  std::vector<double> sinks{};            // [H]
  // t5_bucket of each relative position from -farthest to farthest.
  std::vector<std::int64_t> bucket_at{};
  std::int64_t farthest = 0;
  double scale = 1, softcap = 0, dropout = 0;
  std::uint64_t seed = 0;

  // Row of q (or out), of k (or v), and of lse, as an index of rows.
  std::int64_t q_row(std::int64_t b, std::int64_t h, std::int64_t i) const;
  std::int64_t k_row(std::int64_t b, std::int64_t h, std::int64_t j) const;
  std::int64_t lse_row(std::int64_t b, std::int64_t h, std::int64_t i) const;
  std::int64_t received_row(std::int64_t b, std::int64_t h, std::int64_t j) const;
};
ReferenceProblem reference_problem(const AttentionInputs& inputs);

// The mask alone; a bias of -inf hides as well, but is not asked here.
bool visible(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
             std::int64_t j);
double bias_of(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j);
bool kept_by_dropout(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
                     std::int64_t j);
// The row of the table for a pair.
std::int64_t bucket_of(const ReferenceProblem& p, std::int64_t b, std::int64_t i, std::int64_t j);
// T5's rule, from the integers up: what relative_bucket must return.
std::int64_t t5_bucket(std::int64_t relative, std::int64_t buckets, bool bidirectional,
                       std::int64_t max_distance);

// Row-major in the shapes of AttentionForward, AttentionStatistics and AttentionGrads.
struct ReferenceResult {
  std::vector<double> out{}, lse{};
  std::vector<double> max_logit{}, score_mean{}, score_var{};
  std::vector<double> entropy{}, entropy_mean{}, entropy_relative{};
  std::vector<double> top_weight{}, top_index{}, saturation{}, received{};
  std::vector<double> dq{}, dk{}, dv{}, dbias{}, dsinks{};
  // Before dropout, [B, H, Sq, Sk]; packed [H, T, T], where j counts within the sequence.
  std::vector<double> weights{};
};
ReferenceResult reference_exact(const ReferenceProblem& p);
ReferenceResult reference_plain(const ReferenceProblem& p);  // rounds to p.dtype

}  // namespace qkv::test
