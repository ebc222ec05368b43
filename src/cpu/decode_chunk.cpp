#include "cpu/decode_chunk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/dispatch.h"
#include "cpu/attention_mask.h"
#include "cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode_chunk.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/decode_products-inl.h"
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/score_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class DecodeChunk {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  explicit DecodeChunk(const DecodeJob& job)
      : job_(job),
        problem_(job.problem),
        sequence_(job.problem.sequences[job.sequence]),
        rows_(problem_.group() * sequence_.q_rows),
        even_rows_(round_up(rows_, 2)),
        q_stride_(round_up(problem_.head_size, 16)),
        first_(job.chunk * kChunkKeys),
        keys_(std::min(kChunkKeys, sequence_.k_visible - first_)),
        columns_(round_up(keys_, 16)),
        scores_(even_rows_ * kChunkKeys),
        narrow_(even_rows_ * kChunkKeys),
        query_rows_(static_cast<std::size_t>(sequence_.q_rows)) {
    std::iota(query_rows_.begin(), query_rows_.end(), 0);
  }

  void run() {
    multiply_keys();
    for (std::int64_t g = 0; g < problem_.group(); ++g) weigh_head(g);
    Scratch<std::byte> room;
    const Rows values = key_rows(problem_, problem_.v, run_of_keys(), room);
    if (problem_.v_scale.defined()) {  // whole numbers: what is not finite is in the scale
      scale_columns(problem_.v_scale, true);
      multiply_values<std::int8_t>(values);
      return;
    }
    dispatch_float(problem_.v.dtype(), [&]<class T>() {
      if (multiply_values<T>(values)) return;
      // A NaN that is hidden must not meet a weight of 0: out with them, then back where seen.
      const std::int64_t size = problem_.value_size;
      const Scratch<T> clean(keys_ * size);
      for (std::int64_t i = 0; i < keys_ * size; ++i) {
        const T x = reinterpret_cast<const T*>(values.row(i / size))[i % size];
        clean[i] = std::isfinite(static_cast<float>(x)) ? x : T(0.0f);
      }
      multiply_values<T>({reinterpret_cast<std::byte*>(clean.get()), dtype_of<T>, size, 1});
      add_non_finite<T>(values);
    });
  }

 private:
  template <class To>
  Scratch<To> load_queries() const {
    Scratch<To> q(even_rows_ * q_stride_);
    std::fill_n(q.get(), even_rows_ * q_stride_, To());
    for (std::int64_t g = 0; g < problem_.group(); ++g) {
      const std::int64_t head = job_.key_head * problem_.group() + g;
      load_rows(rows_of(problem_.q, sequence_.q_batch, head, sequence_.q_start), sequence_.q_rows,
                problem_.head_size, q.get() + g * sequence_.q_rows * q_stride_, q_stride_);
    }
    return q;
  }

  KeyRun run_of_keys() const { return {job_.sequence, job_.key_head, first_, keys_}; }

  void multiply_keys() {
    Scratch<std::byte> room;
    const Rows keys = key_rows(problem_, problem_.k, run_of_keys(), room);
    const std::int64_t size = problem_.head_size;
    if (job_.engine != nullptr) {
      const Scratch<bf16> q = load_queries<bf16>();
      job_.engine->scores({q.get(), q_stride_, rows_ == 1 ? 1 : even_rows_},
                          {reinterpret_cast<const bf16*>(keys.data), keys.stride, keys_, size},
                          scores_.get(), kChunkKeys);
      return;
    }
    const Scratch<float> q = load_queries<float>();
    if (job_.bytes != nullptr && all_finite(q.get(), rows_ * q_stride_)) {
      job_.bytes->scores({q.get(), q_stride_, rows_}, bytes_of(keys, size), scores_.get(),
                         kChunkKeys);
      return scale_columns(problem_.k_scale, false);
    }
    const auto score = [&]<class T>() {
      with_rows(rows_, [&](auto rows) {
        score_keys<decltype(rows)::value, T>(q.get(), q_stride_, keys, keys_, size, scores_.get(),
                                             kChunkKeys);
      });
    };
    if (!problem_.k_scale.defined()) return dispatch_float(problem_.k.dtype(), score);
    score.template operator()<std::int8_t>();
    scale_columns(problem_.k_scale, false);
  }

  Int8Decode::Right bytes_of(const Rows& rows, std::int64_t size) const {
    return {reinterpret_cast<const std::int8_t*>(rows.data), rows.stride, keys_, size};
  }

  // Columns of the scores, or of the weights, by the scales of i8 keys or values. A weight of 0
  // stays 0: the scale of a hidden value may be NaN. A hidden score is not looked at.
  void scale_columns(const Tensor& scale, bool keep_zero) {
    const float* from = scale.data<float>() + sequence_.k_batch * scale.stride(0) +
                        job_.key_head * scale.stride(1) + first_ * scale.stride(2);
    alignas(64) float factor[kChunkKeys] = {};
    for (std::int64_t j = 0; j < keys_; ++j) factor[j] = from[j * scale.stride(2)];
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* row = scores_.get() + r * kChunkKeys;
      for (std::int64_t j = 0; j < columns_; j += lanes) {
        const V x = hn::LoadU(d, row + j), product = hn::Mul(x, hn::Load(d, factor + j));
        const auto keeps = hn::Eq(x, hn::Zero(d));
        hn::StoreU(keep_zero ? hn::IfThenElse(keeps, x, product) : product, d, row + j);
      }
    }
  }

  // What scores of one head go through on their way to weights.
  struct HeadScorer {
    BlockMask mask;
    DiagonalBias diagonal;
    ScoreRows scorer;

    HeadScorer(const DecodeChunk& chunk, std::int64_t head)
        : mask(chunk.problem_, chunk.job_.sequence),
          diagonal(chunk.problem_, chunk.job_.sequence, kChunkKeys),
          scorer(chunk.problem_, chunk.job_.sequence, mask, diagonal) {
      const std::vector<std::int64_t>& rows = chunk.query_rows_;
      diagonal.set_head(head);
      mask.set_rows(head, rows.data(), static_cast<std::int64_t>(rows.size()));
      scorer.set_block(head, rows.data());
      scorer.set_tile(chunk.first_, chunk.keys_, chunk.columns_);
    }
  };

  // Scores of one head's rows to weights relative to the chunk's maximum.
  void weigh_head(std::int64_t g) {
    const std::int64_t head = job_.key_head * problem_.group() + g;
    HeadScorer parts(*this, head);
    ScoreRows& scorer = parts.scorer;
    const bool hidden = parts.mask.classify(first_, first_ + keys_) != TileKind::full;
    for (std::int64_t i = 0; i < sequence_.q_rows; ++i) {
      const std::int64_t r = g * sequence_.q_rows + i;
      float* row = scores_.get() + r * kChunkKeys;
      RowPart& part = job_.parts[r];
      part = {};
      scorer.set_block(head, query_rows_.data());  // starts the largest score anew
      scorer.finish_row(i, row, hidden || columns_ != keys_, job_.collect);
      weigh_row(row, scorer.unit(), part);
      part.sums.max_logit = scorer.is_plain() ? part.maximum : scorer.max_logit();
      if (job_.weights != nullptr) std::copy_n(row, columns_, job_.weights + r * kChunkKeys);
      if (job_.engine == nullptr) continue;
      for (std::int64_t j = 0; j < columns_; ++j) narrow_[r * kChunkKeys + j] = bf16(row[j]);
    }
  }

  // row = 2^((s - maximum) unit log2 e); the sums of it, and the moments of the scores.
  void weigh_row(float* row, float unit, RowPart& part) const {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V largest = hn::LoadU(d, row);
    for (std::int64_t j = lanes; j < columns_; j += lanes) {
      largest = hn::Max(largest, hn::LoadU(d, row + j));
    }
    const float maximum = largest_lane(largest);
    if (job_.collect) part.top = first_ + (std::find(row, row + keys_, maximum) - row);
    const V shift = hn::Set(d, maximum == -kInfinity ? 0 : maximum);
    const V scale = hn::Set(d, unit * std::numbers::log2e_v<float>);
    V total = hn::Zero(d), weighted = hn::Zero(d);
    if (job_.collect) collect_moments(row, unit, part.sums);
    for (std::int64_t j = 0; j < columns_; j += lanes) {
      const V t = hn::Mul(hn::Sub(hn::LoadU(d, row + j), shift), scale), p = exp2_fast(d, t);
      total = hn::Add(total, p);
      hn::StoreU(p, d, row + j);
      if (!job_.collect) continue;
      weighted = hn::MulAdd(p, max_keeping_nan(hn::Set(d, -200.0f), t), weighted);
    }
    part.maximum = maximum * unit;
    part.total = hn::GetLane(hn::SumOfLanes(d, total));
    part.weighted = hn::GetLane(hn::SumOfLanes(d, weighted)) * std::numbers::ln2;
  }

  // Mean and deviation of the visible scores of a row: the mean first, then the squares around it.
  void collect_moments(const float* row, float unit, BlockSums& sums) const {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const V low = hn::Set(d, -kInfinity);
    V sum = hn::Zero(d), squares = hn::Zero(d);
    std::size_t pairs = 0;
    for (std::int64_t j = 0; j < columns_; j += lanes) {
      const V s = hn::LoadU(d, row + j);
      const auto hidden = hn::Eq(s, low);
      pairs += static_cast<std::size_t>(lanes) - hn::CountTrue(d, hidden);
      sum = hn::Add(sum, hn::IfThenZeroElse(hidden, s));
    }
    if (pairs == 0) return;
    const auto count = static_cast<double>(pairs);
    const auto mean = static_cast<float>(hn::GetLane(hn::SumOfLanes(d, sum)) / count);
    V rest = hn::Zero(d);  // what rounding the mean to f32 left over
    for (std::int64_t j = 0; j < columns_; j += lanes) {
      const V s = hn::LoadU(d, row + j);
      const V x = hn::IfThenZeroElse(hn::Eq(s, low), hn::Sub(s, hn::Set(d, mean)));
      rest = hn::Add(rest, x);
      squares = hn::MulAdd(x, x, squares);
    }
    const double left = hn::GetLane(hn::SumOfLanes(d, rest));
    const double second = hn::GetLane(hn::SumOfLanes(d, squares));
    sums.pairs = count;
    sums.mean = (mean + left / count) * unit;
    sums.deviation = std::max(second - left * left / count, 0.0) * unit * unit;
  }

  template <class T>
  bool finite(const Rows& values, std::int64_t keys) const {
    const std::int64_t size = problem_.value_size;
    const auto* row = reinterpret_cast<const T*>(values.data);
    if constexpr (std::is_same_v<T, f16>) {
      std::uint16_t worst = 0;
      for (std::int64_t j = 0; j < keys; ++j, row += values.stride) {
        for (std::int64_t i = 0; i < size; ++i) {
          worst = std::max<std::uint16_t>(worst, row[i].bits & 0x7c00);
        }
      }
      return worst < 0x7c00;
    } else if constexpr (!std::is_same_v<T, std::int8_t>) {
      for (std::int64_t j = 0; j < keys; ++j, row += values.stride) {
        if (!all_finite(row, size)) return false;
      }
    }
    return true;
  }

  bool weights_finite() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      if (!all_finite(scores_.get() + r * kChunkKeys, columns_)) return false;
    }
    return true;
  }

  // False where a value is not finite, and the sums mean nothing.
  template <class T>
  bool multiply_values(const Rows& values) {
    if constexpr (std::is_same_v<T, std::int8_t>) {
      if (job_.bytes != nullptr && weights_finite()) {
        job_.bytes->values({scores_.get(), kChunkKeys, rows_},
                           bytes_of(values, problem_.value_size), job_.values, problem_.value_size);
        return true;
      }
    }
    if (job_.engine != nullptr) {
      const bool whole = finite<T>(values, keys_);
      if (whole) sum_narrow(values);
      return whole;
    }
    for (std::int64_t j = 0; j < keys_; j += kKeysInCache) {
      const std::int64_t count = std::min(kKeysInCache, keys_ - j);
      const Rows block = values.from(j);
      if (!finite<T>(block, count)) return false;
      with_rows(rows_, [&](auto rows) {
        sum_values<decltype(rows)::value, T>(scores_.get() + j, kChunkKeys, block, count,
                                             problem_.value_size, job_.values, j > 0);
      });
    }
    return true;
  }

  template <class T>
  void add_non_finite(const Rows& values) {
    const std::int64_t size = problem_.value_size;
    for (std::int64_t g = 0; g < problem_.group(); ++g) {
      HeadScorer parts(*this, job_.key_head * problem_.group() + g);
      for (std::int64_t j = 0; j < keys_; ++j) {
        const auto* value = reinterpret_cast<const T*>(values.row(j));
        for (std::int64_t i = 0; i < sequence_.q_rows; ++i) {
          if (!parts.scorer.sees(i, j)) continue;
          const std::int64_t r = g * sequence_.q_rows + i;
          for (std::int64_t c = 0; c < size; ++c) {
            const auto x = static_cast<float>(value[c]);
            if (!std::isfinite(x)) job_.values[r * size + c] += scores_[r * kChunkKeys + j] * x;
          }
        }
      }
    }
  }

  void sum_narrow(const Rows& values) {
    const std::int64_t size = problem_.value_size, stride = round_up(size, 16);
    const Scratch<float> sums(even_rows_ * stride);
    std::fill_n(sums.get(), even_rows_ * stride, 0.0f);
    if (even_rows_ != rows_) std::fill_n(narrow_.get() + rows_ * kChunkKeys, columns_, bf16());
    job_.engine->values({narrow_.get(), kChunkKeys, rows_ == 1 ? 1 : even_rows_},
                        {reinterpret_cast<const bf16*>(values.data), values.stride, keys_, size},
                        sums.get(), stride);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy_n(sums.get() + r * stride, size, job_.values + r * size);
    }
  }

  const DecodeJob& job_;
  const AttentionProblem& problem_;
  const AttentionSequence& sequence_;
  std::int64_t rows_, even_rows_, q_stride_;
  std::int64_t first_, keys_, columns_;
  Scratch<float> scores_;
  Scratch<bf16> narrow_;
  std::vector<std::int64_t> query_rows_;
};

void run_decode_chunk_target(const DecodeJob& job) { DecodeChunk(job).run(); }

void store_decoded_row_target(const float* from, std::int64_t count, const Rows& to,
                              std::int64_t row) {
  store_row(from, count, to, row);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(run_decode_chunk_target);
HWY_EXPORT(store_decoded_row_target);

void run_decode_chunk(const DecodeJob& job) { HWY_DYNAMIC_DISPATCH(run_decode_chunk_target)(job); }

void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(store_decoded_row_target)(from, count, to, row);
}

}  // namespace qkv::cpu
#endif
