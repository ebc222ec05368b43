// Backward: each chunk of keys of a (sequence, key head) is a task that recomputes its tiles and
// owns dK and dV there, while dQ is summed over chunks in their order; where keys are few, a chunk
// of rows owns dQ, and dK and dV are summed. The chunks depend on shapes and masks alone, so the
// bits do not depend on threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/threads.h"
#include "cpu/attention_block.h"
#include "cpu/attention_decode.h"
#include "cpu/attention_engine.h"
#include "cpu/attention_gradient.h"
#include "cpu/attention_gradient_split.h"
#include "cpu/kernels.h"

namespace qkv::cpu {
namespace {

// Rows whose |lse| is at most this trust it: half a unit in its last place is 5e-7.
constexpr float kExactLse = 14;

std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

class Backward {
 public:
  Backward(const AttentionProblem& problem, const AttentionBackward& tensors)
      : problem_(problem),
        tensors_(tensors),
        products_(tensors.lse.numel()),
        shifts_(tensors.lse.numel()),
        factors_(tensors.lse.numel()),
        in_{problem, tensors, products_.get(), shifts_.get(), factors_.get()} {}

  void run() {
    const auto sequences = static_cast<std::int64_t>(problem_.sequences.size());
    parallel_for(sequences * problem_.heads, [&](std::int64_t at) {
      row_products(problem_, tensors_, at / problem_.heads, at % problem_.heads, products_.get());
      normalise_rows(at / problem_.heads, at % problem_.heads);
    });
    plan();
    parallel_for(static_cast<std::int64_t>(chunks_.size()),
                 [&](std::int64_t at) { run_gradient_chunk(in_, chunks_[at]); });
    parallel_for(sequences * problem_.heads,
                 [&](std::int64_t at) { store_queries(at / problem_.heads, at % problem_.heads); });
    parallel_for(sequences * problem_.key_heads, [&](std::int64_t at) {
      store_keys(at / problem_.key_heads, at % problem_.key_heads);
    });
    zero_hidden_keys();
    if (tensors_.dbias.defined()) bias_gradient();
    if (tensors_.dslopes.defined() || tensors_.dtable.defined()) diagonal_gradient();
    if (tensors_.dsinks.defined()) sink_gradient();
  }

 private:
  // p = exp(s - lse), and lse is rounded to f32: an error of lse in a weight. Where that is too
  // much, or where scores are so large that s - lse means nothing, maximum and sum are found again.
  void normalise_rows(std::int64_t b, std::int64_t head) const {
    const AttentionSequence& s = problem_.sequences[b];
    const std::int64_t base = lse_index(problem_, tensors_, b, head);
    const float* lse = tensors_.lse.data<float>() + base;
    const bool plain = is_plain(problem_);
    const double unit = plain ? problem_.scale : 1.0;
    // Few rows were decoded: by other products, whose scores differ from ours in their last places.
    const bool decoded = is_decode(problem_);
    std::vector<std::int64_t> doubtful;
    for (std::int64_t i = 0; i < s.q_rows; ++i) {
      const bool sees = lse[i] != -std::numeric_limits<float>::infinity();
      const auto shift = static_cast<float>(sees ? lse[i] / unit : 0);
      shifts_[base + i] = shift;
      factors_[base + i] = static_cast<float>(sees ? std::exp(shift * unit - lse[i]) : 0);
      if (sees && (decoded || std::abs(lse[i]) > kExactLse)) doubtful.push_back(i);
    }
    if (!doubtful.empty()) find_maxima(b, head, doubtful, base);
  }

  void find_maxima(std::int64_t b, std::int64_t head, const std::vector<std::int64_t>& rows,
                   std::int64_t base) const {
    // In f32, as the tiles of backward are computed, so that the maximum is one of their scores.
    const AttentionEngine& engine = attention_engine(DType::f32);
    const PackedKeys packed(problem_, engine, b, head);
    BlockMask mask(problem_, b);
    DiagonalBias diagonal(problem_, b, engine.tile_keys);
    diagonal.set_head(head);
    const auto count = static_cast<std::int64_t>(rows.size());
    const Scratch<float> maxima(count), factors(count);
    BlockJob job{problem_, engine, packed.tiles(), mask, diagonal, b, head, rows.data(), count};
    job.maxima = maxima.get();
    job.factors = factors.get();
    run_blocks(job);
    for (std::int64_t r = 0; r < count; ++r) {
      shifts_[base + rows[r]] = maxima[r];
      factors_[base + rows[r]] = factors[r];
    }
  }

  void plan() {
    Extents size;
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
      const GradientSplit split = split_gradient(problem_, static_cast<std::int64_t>(b));
      splits_.push_back({{}, split.owns_queries, split.owns_keys});
      for (const GradientRange& range : split.parts) {
        splits_.back().parts.push_back({range, size});
        if (!split.owns_queries) size.dq += range.rows * problem_.heads * problem_.head_size;
        if (!split.owns_keys) {
          size.dk += range.keys * problem_.key_heads * problem_.head_size;
          size.dv += range.keys * problem_.key_heads * problem_.value_size;
        }
        size.diagonals += problem_.heads * diagonals_of(problem_.sequences[b]);
      }
    }
    dq_ = Scratch<float>(size.dq);
    dk_ = Scratch<float>(size.dk);
    dv_ = Scratch<float>(size.dv);
    if (tensors_.dslopes.defined() || tensors_.dtable.defined()) {
      diagonals_ = Scratch<double>(size.diagonals);
      std::fill_n(diagonals_.get(), size.diagonals, 0.0);
    }
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b)
      add_chunks(static_cast<std::int64_t>(b));
  }

  // Elements of the partial sums: dq, diagonals of all heads, dk and dv of all key heads.
  struct Extents {
    std::int64_t dq = 0, dk = 0, dv = 0, diagonals = 0;
  };
  struct Part {
    GradientRange range;
    Extents at;  // where its sums begin
  };
  struct Split {
    std::vector<Part> parts;
    bool owns_queries = false, owns_keys = false;
  };

  void add_chunks(std::int64_t b) {
    const Split& split = splits_[b];
    for (std::int64_t key_head = 0; key_head < problem_.key_heads; ++key_head) {
      for (const Part& part : split.parts) {
        const std::int64_t head = key_head * problem_.group();
        chunks_.push_back(
            {.sequence = b,
             .key_head = key_head,
             .first_key = part.range.first_key,
             .keys = part.range.keys,
             .first_row = part.range.first_row,
             .rows = part.range.rows,
             .dq = split.owns_queries ? nullptr : dq_part(part, head),
             .dk = split.owns_keys ? nullptr : dk_part(part, key_head),
             .dv = split.owns_keys ? nullptr : dv_part(part, key_head),
             .diagonals = diagonals_.get() == nullptr ? nullptr : diagonal_part(b, part, head)});
      }
    }
  }

  float* dq_part(const Part& part, std::int64_t head) const {
    return dq_.get() + part.at.dq + head * part.range.rows * problem_.head_size;
  }
  float* dk_part(const Part& part, std::int64_t key_head) const {
    return dk_.get() + part.at.dk + key_head * part.range.keys * problem_.head_size;
  }
  float* dv_part(const Part& part, std::int64_t key_head) const {
    return dv_.get() + part.at.dv + key_head * part.range.keys * problem_.value_size;
  }
  static std::int64_t diagonals_of(const AttentionSequence& s) {
    return std::max<std::int64_t>(s.q_rows + s.k_rows - 1, 0);
  }
  double* diagonal_part(std::int64_t b, const Part& part, std::int64_t head) const {
    return diagonals_.get() + part.at.diagonals + head * diagonals_of(problem_.sequences[b]);
  }

  void store_queries(std::int64_t b, std::int64_t head) const {
    const AttentionSequence& s = problem_.sequences[b];
    if (splits_[b].owns_queries) return;
    std::vector<GradientPart> parts;
    for (const Part& part : splits_[b].parts) {
      parts.push_back({dq_part(part, head), part.range.first_row, part.range.rows});
    }
    store_gradient(parts, {s.q_rows, problem_.head_size, problem_.scale},
                   rows_of(tensors_.dq, s.q_batch, head, s.q_start));
  }

  void store_keys(std::int64_t b, std::int64_t key_head) const {
    const AttentionSequence& s = problem_.sequences[b];
    if (splits_[b].owns_keys) return;
    std::vector<GradientPart> dk, dv;
    for (const Part& part : splits_[b].parts) {
      dk.push_back({dk_part(part, key_head), part.range.first_key, part.range.keys});
      dv.push_back({dv_part(part, key_head), part.range.first_key, part.range.keys});
    }
    store_gradient(dk, {s.k_visible, problem_.head_size, problem_.scale},
                   rows_of(tensors_.dk, s.k_batch, key_head, s.k_start));
    store_gradient(dv, {s.k_visible, problem_.value_size, 1},
                   rows_of(tensors_.dv, s.k_batch, key_head, s.k_start));
  }

  // Keys beyond a sequence's length belong to no chunk.
  void zero_hidden_keys() const {
    for (const AttentionSequence& s : problem_.sequences) {
      const std::int64_t hidden = s.k_rows - s.k_visible;
      if (hidden == 0) continue;
      for (std::int64_t key_head = 0; key_head < problem_.key_heads; ++key_head) {
        const std::int64_t row = s.k_start + s.k_visible;
        store_gradient({}, {hidden, problem_.head_size, 1},
                       rows_of(tensors_.dk, s.k_batch, key_head, row));
        store_gradient({}, {hidden, problem_.value_size, 1},
                       rows_of(tensors_.dv, s.k_batch, key_head, row));
      }
    }
  }

  // Tasks own disjoint parts of dbias and add to them in a fixed order: one task per extent that
  // is not summed over.
  void bias_gradient() const {
    const Tensor& to = tensors_.dbias;
    const std::int64_t rows = problem_.q.size(2), keys = problem_.k.size(2);
    const std::int64_t row_blocks = blocks(rows, kGradientRows);
    const std::int64_t key_blocks = blocks(keys, kGradientKeys);
    const std::int64_t own_rows = to.size(2) == 1 ? 1 : row_blocks;
    const std::int64_t own_keys = to.size(3) == 1 ? 1 : key_blocks;
    const std::int64_t tasks = to.size(0) * to.size(1) * own_rows * own_keys;
    parallel_for(tasks, [&](std::int64_t task) {
      const auto range = [](bool summed, std::int64_t own, std::int64_t count) {
        return summed ? KeyInterval{0, count} : KeyInterval{own, own + 1};
      };
      std::int64_t rest = task;
      const KeyInterval key_range = range(own_keys == 1, rest % own_keys, key_blocks);
      rest /= own_keys;
      const KeyInterval row_range = range(own_rows == 1, rest % own_rows, row_blocks);
      rest /= own_rows;
      const KeyInterval head_range = range(to.size(1) == 1, rest % to.size(1), problem_.heads);
      rest /= to.size(1);
      const KeyInterval batch_range = range(to.size(0) == 1, rest, problem_.q.size(0));
      const bool sum_rows = to.size(2) == 1, sum_keys = to.size(3) == 1;
      const std::int64_t width = sum_keys ? 1 : kGradientKeys;
      std::vector<double> sums(static_cast<std::size_t>((sum_rows ? 1 : kGradientRows) * width));
      for (std::int64_t b = batch_range.begin; b < batch_range.end; ++b) {
        BlockMask mask(problem_, b);
        for (std::int64_t head = head_range.begin; head < head_range.end; ++head) {
          for (std::int64_t i = row_range.begin; i < row_range.end; ++i) {
            for (std::int64_t j = key_range.begin; j < key_range.end; ++j) {
              add_bias_tile(b, head, i, j, mask, sums);
            }
          }
        }
      }
      float* out = to.data<float>() + batch_range.begin * (to.size(0) == 1 ? 0 : to.stride(0)) +
                   head_range.begin * (to.size(1) == 1 ? 0 : to.stride(1));
      const std::int64_t row = row_range.begin * kGradientRows,
                         key = key_range.begin * kGradientKeys;
      for (std::int64_t i = 0; i < (sum_rows ? 1 : std::min(kGradientRows, rows - row)); ++i) {
        for (std::int64_t j = 0; j < (sum_keys ? 1 : std::min(kGradientKeys, keys - key)); ++j) {
          out[(sum_rows ? 0 : row + i) * to.stride(2) + (sum_keys ? 0 : key + j)] =
              static_cast<float>(sums[i * width + j]);
        }
      }
    });
  }
  // `sums` has a row per row of the tile, or one; a column per key, or one.
  void add_bias_tile(std::int64_t b, std::int64_t head, std::int64_t row_block,
                     std::int64_t key_block, BlockMask& mask, std::vector<double>& sums) const {
    const AttentionSequence& s = problem_.sequences[b];
    const std::int64_t row = row_block * kGradientRows, key = key_block * kGradientKeys;
    if (key >= s.k_visible || row >= s.q_rows) return;
    const Tensor& to = tensors_.dbias;
    const std::int64_t width = to.size(3) == 1 ? 1 : kGradientKeys;
    add_bias_gradient(in_,
                      {b, head, row, std::min(kGradientRows, s.q_rows - row), key,
                       std::min(kGradientKeys, s.k_visible - key), sums.data(),
                       to.size(2) == 1 ? 0 : width, to.size(3) == 1 ? 0 : 1},
                      mask);
  }

  // d slope = -sum of ds |j - (i + o)|; d table[bucket] = sum of ds over the bucket's diagonals.
  void diagonal_gradient() const {
    std::vector<double> table(
        static_cast<std::size_t>(tensors_.dtable.defined() ? tensors_.dtable.numel() : 0));
    const Tensor& slopes = tensors_.dslopes;
    std::vector<double> by_slope(static_cast<std::size_t>(slopes.defined() ? slopes.numel() : 0));
    for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
      const auto sequence = static_cast<std::int64_t>(b);
      const DiagonalBias diagonal(problem_, sequence, 0);
      if (!diagonal.defined()) continue;
      for (const Part& part : splits_[b].parts) {
        for (std::int64_t head = 0; head < problem_.heads; ++head) {
          const double* sums = diagonal_part(sequence, part, head);
          for (std::int64_t t = 0; t < diagonal.diagonals(); ++t) {
            if (tensors_.dtable.defined()) {
              table[diagonal.bucket(t) * problem_.heads + head] += sums[t];
            } else {
              const std::int64_t row = slopes.size(0) == 1 ? 0 : sequence;
              by_slope[row * problem_.heads + head] -=
                  sums[t] * static_cast<double>(std::abs(diagonal.relative(t)));
            }
          }
        }
      }
    }
    if (tensors_.dtable.defined()) {
      std::copy(table.begin(), table.end(), tensors_.dtable.data<float>());
    } else {
      std::copy(by_slope.begin(), by_slope.end(), slopes.data<float>());
    }
  }

  // p_sink = exp(sink - lse) takes part in every weight: d lse / d sink = p_sink.
  void sink_gradient() const {
    const float* lse = tensors_.lse.data<float>();
    for (std::int64_t head = 0; head < problem_.heads; ++head) {
      const double sink = problem_.sinks.data<float>()[head];
      double sum = 0;
      for (std::size_t b = 0; b < problem_.sequences.size(); ++b) {
        const std::int64_t base = lse_index(problem_, tensors_, static_cast<std::int64_t>(b), head);
        for (std::int64_t i = 0; i < problem_.sequences[b].q_rows; ++i) {
          const std::int64_t at = base + i;
          if (lse[at] == -std::numeric_limits<float>::infinity()) continue;
          double change = -products_[at];
          if (tensors_.dlse.defined()) change += tensors_.dlse.data<float>()[at];
          if (tensors_.dentropy.defined()) {
            const double mean_score = double{lse[at]} - tensors_.entropy.data<float>()[at];
            change += tensors_.dentropy.data<float>()[at] * (1 + mean_score);
          }
          sum += std::exp(sink - lse[at]) * change;
        }
      }
      tensors_.dsinks.data<float>()[head] = static_cast<float>(sum);
    }
  }

  const AttentionProblem& problem_;
  const AttentionBackward& tensors_;
  Scratch<float> products_, shifts_, factors_;
  GradientInputs in_;
  std::vector<Split> splits_;  // of each sequence
  std::vector<GradientChunk> chunks_;
  Scratch<float> dq_, dk_, dv_;
  Scratch<double> diagonals_;
};

}  // namespace

void attention_backward(const AttentionProblem& problem, const AttentionBackward& tensors) {
  static_cast<void>(attention_engine(problem.q.dtype()));  // settles the CPU target
  Backward(problem, tensors).run();
}

}  // namespace qkv::cpu
