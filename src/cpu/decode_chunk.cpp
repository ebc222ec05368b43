#include "cpu/decode_chunk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <type_traits>
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

// Chunk after chunk of the rows of one key head.
class DecodeChunks {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr std::int64_t kColumnsTogether = 32;     // of scores: two vectors or more
  static constexpr std::int64_t kStride = kMostChunkKeys;  // of rows of scores
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  explicit DecodeChunks(const DecodeJob& job)
      : job_(job),
        problem_(job.problem),
        sequence_(job.problem.sequences[job.sequence]),
        rows_(problem_.group() * sequence_.q_rows),
        even_rows_(round_up(rows_, 2)),
        q_stride_(round_up(problem_.head_size, 16)),
        scores_(even_rows_ * kStride),
        narrow_(even_rows_ * kStride),
        query_rows_(static_cast<std::size_t>(sequence_.q_rows)) {
    std::iota(query_rows_.begin(), query_rows_.end(), 0);
    if (job.engine != nullptr) {
      narrow_queries_ = load_queries<std::uint16_t>();
      if (even_rows_ != rows_) {
        std::fill_n(narrow_.get() + rows_ * kStride, kStride, std::uint16_t{0});
      }
    } else {
      queries_ = load_queries<float>();
      queries_finite_ = all_finite(queries_.get(), rows_ * q_stride_);
    }
    for (std::int64_t g = 0; g < problem_.group(); ++g) {
      heads_.push_back(std::make_unique<HeadScorer>(*this, g));
    }
  }

  void run() {
    for (std::int64_t chunk = job_.first; chunk < job_.last; ++chunk) {
      const std::int64_t size = chunk_keys(problem_, sequence_);
      first_ = chunk * size;
      keys_ = std::min(size, sequence_.k_visible - first_);
      columns_ = round_up(keys_, kColumnsTogether);
      result_ = job_.result.from_row((chunk - job_.first) * job_.result_rows, problem_.value_size);
      run_chunk();
    }
  }

 private:
  void run_chunk() {
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

  template <class To>
  Scratch<To> load_queries() const {
    Scratch<To> q(even_rows_ * q_stride_);
    std::fill_n(q.get(), even_rows_ * q_stride_, To());
    for (std::int64_t g = 0; g < problem_.group(); ++g) {
      load_rows(rows_of(problem_.q, sequence_.q_batch, head(g), sequence_.q_start),
                sequence_.q_rows, problem_.head_size, q.get() + g * sequence_.q_rows * q_stride_,
                q_stride_);
    }
    return q;
  }

  std::int64_t head(std::int64_t g) const { return job_.key_head * problem_.group() + g; }
  KeyRun run_of_keys() const { return {job_.sequence, job_.key_head, first_, keys_}; }

  void multiply_keys() {
    Scratch<std::byte> room;
    const Rows keys = key_rows(problem_, problem_.k, run_of_keys(), room);
    const std::int64_t size = problem_.head_size;
    if (job_.engine != nullptr) {
      job_.engine->scores({narrow_queries_.get(), q_stride_, rows_ == 1 ? 1 : even_rows_},
                          {reinterpret_cast<const std::uint16_t*>(keys.data), keys.stride, keys_,
                           size, job_.from_memory},
                          scores_.get(), kStride);
      return;
    }
    if (job_.bytes != nullptr && queries_finite_) {
      job_.bytes->scores({queries_.get(), q_stride_, rows_}, bytes_of(keys, size), scores_.get(),
                         kStride);
      return scale_columns(problem_.k_scale, false);
    }
    const auto score = [&]<class T>() {
      with_rows(rows_, [&](auto rows) {
        score_keys<decltype(rows)::value, T>(queries_.get(), q_stride_, keys, keys_, size,
                                             scores_.get(), kStride);
      });
    };
    if (!problem_.k_scale.defined()) return dispatch_float(problem_.k.dtype(), score);
    score.template operator()<std::int8_t>();
    scale_columns(problem_.k_scale, false);
  }

  Int8Decode::Right bytes_of(const Rows& rows, std::int64_t size) const {
    return {reinterpret_cast<const std::int8_t*>(rows.data), rows.stride, keys_, size,
            job_.from_memory};
  }

  // Columns of the scores, or of the weights, by the scales of i8 keys or values. A weight of 0
  // stays 0: the scale of a hidden value may be NaN. A hidden score is not looked at.
  void scale_columns(const Tensor& scale, bool keep_zero) {
    const float* from = scale.data<float>() + sequence_.k_batch * scale.stride(0) +
                        job_.key_head * scale.stride(1) + first_ * scale.stride(2);
    alignas(64) float factor[kStride];
    const std::int64_t step = scale.stride(2);
    for (std::int64_t j = 0; j < keys_; ++j) factor[j] = from[j * step];
    std::fill(factor + keys_, factor + columns_, 0.0f);
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* row = scores_.get() + r * kStride;
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

    HeadScorer(const DecodeChunks& of, std::int64_t g)
        : mask(of.problem_, of.job_.sequence),
          diagonal(of.problem_, of.job_.sequence, kStride),
          scorer(of.problem_, of.job_.sequence, mask, diagonal) {
      const std::vector<std::int64_t>& rows = of.query_rows_;
      diagonal.set_head(of.head(g));
      mask.set_rows(of.head(g), rows.data(), static_cast<std::int64_t>(rows.size()));
    }
  };

  // Scores of one head's rows to weights relative to the chunk's maximum.
  void weigh_head(std::int64_t g) {
    HeadScorer& parts = *heads_[g];
    ScoreRows& scorer = parts.scorer;
    scorer.set_tile(first_, keys_, columns_);
    const bool hidden = parts.mask.classify(first_, first_ + keys_) != TileKind::full;
    for (std::int64_t i = 0; i < sequence_.q_rows; ++i) {
      const std::int64_t r = g * sequence_.q_rows + i;
      float* row = scores_.get() + r * kStride;
      RowPart& part = result_.parts[r];
      part = {};
      scorer.set_block(head(g), query_rows_.data());  // starts the largest score anew
      scorer.finish_row(i, row, hidden || columns_ != keys_, job_.collect);
      const DType narrow = job_.engine == nullptr ? DType::f32 : job_.engine->dtype;
      dispatch_float(narrow, [&]<class Narrow>() {
        job_.collect ? weigh_row<Narrow, true>(r, scorer.unit(), part)
                     : weigh_row<Narrow, false>(r, scorer.unit(), part);
      });
      part.sums.max_logit =
          scorer.is_plain() ? largest_score(part.maximum, part.total) : scorer.max_logit();
      if (result_.weights != nullptr) std::copy_n(row, columns_, result_.weights + r * kStride);
    }
  }

  // Row r = 2^((s - maximum) unit log2 e), for an engine as Narrow too; the sums of it, and the
  // moments of the scores.
  template <class Narrow, bool kCollect>
  void weigh_row(std::int64_t r, float unit, RowPart& part) {
    constexpr bool kNarrow = !std::is_same_v<Narrow, float>;
    constexpr int kAtOnce = HWY_TARGET == HWY_NEON ? 8 : 4;
    constexpr int kTogether = std::min<int>(kAtOnce, kColumnsTogether / hn::MaxLanes(D()));
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    float* row = scores_.get() + r * kStride;
    [[maybe_unused]] auto* narrow = reinterpret_cast<Narrow*>(narrow_.get() + r * kStride);
    [[maybe_unused]] const V one = hn::Set(d, kNarrow ? job_.engine->weight_unit : 1.0f);
    const float maximum = largest_of(row);
    if (kCollect) {
      part.top = first_ + (std::find(row, row + keys_, maximum) - row);
      collect_moments(row, unit, part.sums);
    }
    const V shift = hn::Set(d, maximum == -kInfinity ? 0 : maximum);
    const V scale = hn::Set(d, unit * std::numbers::log2e_v<float>);
    V total = hn::Zero(d), weighted = hn::Zero(d);
    for (std::int64_t j = 0; j < columns_; j += kTogether * lanes) {
      V p[kTogether], exponent[kTogether];
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) {
        p[i] = exponent[i] = hn::Mul(hn::Sub(hn::LoadU(d, row + j + i * lanes), shift), scale);
      }
      exp2_each<kNarrow ? 4 : 5>(d, p);
      total = hn::Add(total, sum_by_halves<kTogether>(p));
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) {
        hn::StoreU(p[i], d, row + j + i * lanes);
        if constexpr (!kCollect) continue;
        weighted = hn::MulAdd(p[i], max_keeping_nan(hn::Set(d, -200.0f), exponent[i]), weighted);
      }
      if constexpr (kNarrow) {
        HWY_UNROLL(4)
        for (int i = 0; i < kTogether; i += 2) {
          if constexpr (std::is_same_v<Narrow, f16>) {
            p[i] = hn::Mul(p[i], one);
            p[i + 1] = hn::Mul(p[i + 1], one);
          }
          store_narrow(p[i], p[i + 1], narrow + j + i * lanes);
        }
      }
    }
    part.maximum = maximum * unit;
    part.total = hn::GetLane(hn::SumOfLanes(d, total));
    part.weighted = hn::GetLane(hn::SumOfLanes(d, weighted)) * std::numbers::ln2;
  }

  float largest_of(const float* row) const {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V a = hn::LoadU(d, row), b = a;
    for (std::int64_t j = 0; j < columns_; j += 2 * lanes) {
      a = hn::Max(a, hn::LoadU(d, row + j));
      b = hn::Max(b, hn::LoadU(d, row + j + lanes));
    }
    return largest_lane(hn::Max(a, b));
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

  bool weights_finite() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      if (!all_finite(scores_.get() + r * kStride, columns_)) return false;
    }
    return true;
  }

  // False where the sums mean nothing for a value that is not finite: any makes a sum of every row
  // infinite or NaN, whatever its weight. The values need no look of their own, which would be the
  // one that waits for memory.
  template <class T>
  bool multiply_values(const Rows& values) {
    const std::int64_t size = problem_.value_size;
    if constexpr (std::is_same_v<T, std::int8_t>) {
      if (job_.bytes != nullptr && weights_finite()) {
        job_.bytes->values({scores_.get(), kStride, rows_}, bytes_of(values, size), result_.values,
                           size);
        return true;
      }
    }
    if (job_.engine != nullptr) {
      sum_narrow(values);
      return all_finite(result_.values, rows_ * size);
    }
    for (std::int64_t j = 0; j < keys_; j += kKeysInCache) {
      with_rows(rows_, [&](auto rows) {
        sum_values<decltype(rows)::value, T>(scores_.get() + j, kStride, values.from(j),
                                             std::min(kKeysInCache, keys_ - j), size,
                                             result_.values, j > 0, job_.from_memory);
      });
    }
    return all_finite(result_.values, rows_ * size);
  }

  template <class T>
  void add_non_finite(const Rows& values) {
    const std::int64_t size = problem_.value_size;
    for (std::int64_t g = 0; g < problem_.group(); ++g) {
      ScoreRows& scorer = heads_[g]->scorer;
      for (std::int64_t j = 0; j < keys_; ++j) {
        const auto* value = reinterpret_cast<const T*>(values.row(j));
        for (std::int64_t i = 0; i < sequence_.q_rows; ++i) {
          if (!scorer.sees(i, j)) continue;
          const std::int64_t r = g * sequence_.q_rows + i;
          for (std::int64_t c = 0; c < size; ++c) {
            const auto x = static_cast<float>(value[c]);
            if (!std::isfinite(x)) result_.values[r * size + c] += scores_[r * kStride + j] * x;
          }
        }
      }
    }
  }

  void sum_narrow(const Rows& values) {
    const std::int64_t size = problem_.value_size, stride = round_up(size, 16);
    const Scratch<float> sums(even_rows_ * stride);
    std::fill_n(sums.get(), even_rows_ * stride, 0.0f);
    job_.engine->values({narrow_.get(), kStride, rows_ == 1 ? 1 : even_rows_},
                        {reinterpret_cast<const std::uint16_t*>(values.data), values.stride, keys_,
                         size, job_.from_memory},
                        sums.get(), stride);
    const float unit = 1 / job_.engine->weight_unit;
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float* sum = sums.get() + r * stride;
      for (std::int64_t c = 0; c < size; ++c) result_.values[r * size + c] = sum[c] * unit;
    }
  }

  const DecodeJob& job_;
  const AttentionProblem& problem_;
  const AttentionSequence& sequence_;
  std::int64_t rows_, even_rows_, q_stride_;
  Scratch<float> scores_, queries_;                 // queries of one of two kinds
  Scratch<std::uint16_t> narrow_, narrow_queries_;  // bits of the engine's dtype
  bool queries_finite_ = false;
  std::vector<std::int64_t> query_rows_;
  std::vector<std::unique_ptr<HeadScorer>> heads_;
  // of the chunk at hand
  std::int64_t first_ = 0, keys_ = 0, columns_ = 0;
  DecodeResult result_{};
};

void run_decode_chunks_target(const DecodeJob& job) { DecodeChunks(job).run(); }

void store_decoded_row_target(const float* from, std::int64_t count, const Rows& to,
                              std::int64_t row) {
  store_row(from, count, to, row);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(run_decode_chunks_target);
HWY_EXPORT(store_decoded_row_target);

void run_decode_chunks(const DecodeJob& job) {
  HWY_DYNAMIC_DISPATCH(run_decode_chunks_target)(job);
}

void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(store_decoded_row_target)(from, count, to, row);
}

}  // namespace qkv::cpu
#endif
