// The weights of chosen heads and rows, or their averages over blocks: for looking. Blocks of rows
// run as in forward, without values.
#include <algorithm>

#include "core/threads.h"
#include "cpu/attention_block.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"

namespace qkv::cpu {
namespace {

// Adds the weights of rows [first, first + count) of the selection to their pooled rows.
void pool(const AttentionWeights& wanted, const float* weights, std::int64_t keys,
          std::int64_t first, std::int64_t count, double* to) {
  const auto rows = static_cast<std::int64_t>(wanted.rows.size());
  const std::int64_t columns = wanted.weights.size(3);
  for (std::int64_t r = 0; r < count; ++r, weights += keys) {
    const std::int64_t block = (first + r) / wanted.pool_rows;
    const std::int64_t in_block = std::min(wanted.pool_rows, rows - block * wanted.pool_rows);
    const double share = 1.0 / static_cast<double>(in_block);
    double* row = to + block * columns;
    if (wanted.pool_keys == 1) {
      for (std::int64_t j = 0; j < keys; ++j) row[j] += share * weights[j];
      continue;
    }
    for (std::int64_t c = 0, j = 0; c < columns; ++c) {  // a division per weight would cost more
      double sum = row[c];
      for (const std::int64_t end = std::min(keys, j + wanted.pool_keys); j < end; ++j) {
        sum += share * weights[j];
      }
      row[c] = sum;
    }
  }
}

}  // namespace

void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted) {
  const AttentionEngine& engine = attention_engine(problem.q.dtype());
  const auto heads = static_cast<std::int64_t>(wanted.heads.size());
  const auto rows = static_cast<std::int64_t>(wanted.rows.size());
  const std::int64_t per_head = wanted.weights.size(2) * wanted.weights.size(3);
  parallel_for(static_cast<std::int64_t>(problem.sequences.size()) * heads, [&](std::int64_t at) {
    const std::int64_t sequence = at / heads, head = wanted.heads[at % heads];
    const AttentionSequence& s = problem.sequences[sequence];
    const PackedKeys packed(problem, engine, sequence, head);
    BlockMask mask(problem, sequence);
    DiagonalBias diagonal(problem, sequence, engine.tile_keys);
    diagonal.set_head(head);
    const Scratch<float> block(engine.tile_rows * s.k_rows);
    const Scratch<double> pooled(per_head);  // a pool may hold millions of weights
    std::fill_n(pooled.get(), per_head, 0.0);
    for (std::int64_t first = 0; first < rows; first += engine.tile_rows) {
      const std::int64_t count = std::min(engine.tile_rows, rows - first);
      std::fill_n(block.get(), count * s.k_rows, 0.0f);
      BlockJob job{problem,  engine,   packed.tiles(), mask,
                   diagonal, sequence, head,           wanted.rows.data() + first,
                   count};
      job.weights = block.get();
      job.weights_stride = s.k_rows;
      run_blocks(job);
      pool(wanted, block.get(), s.k_rows, first, count, pooled.get());
    }
    std::copy_n(pooled.get(), per_head, wanted.weights.data<float>() + at * per_head);
  });
}

}  // namespace qkv::cpu
