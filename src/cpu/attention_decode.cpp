#include "cpu/attention_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/dispatch.h"
#include "core/threads.h"
#include "cpu/attention_block.h"
#include "cpu/attention_mask.h"
#include "cpu/attention_plan.h"
#include "cpu/decode_engine.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"

#ifndef QKV_CPU_ATTENTION_DECODE_ONCE
#define QKV_CPU_ATTENTION_DECODE_ONCE
namespace qkv::cpu {

// Enough keys for the sums over them to be long, few enough to stay in a core's cache.
inline constexpr std::int64_t kChunkKeys = 256;
inline constexpr std::int64_t kMostRows = DecodeEngine::kMostRows;

// What a chunk found out about a row besides its sums of p v, all relative to its own maximum.
struct RowPart {
  float maximum = 0, total = 0;
  BlockSums sums;       // max_logit, pairs, mean and deviation; with statistics only
  double weighted = 0;  // sum of p log p
  std::int64_t top = -1;
};

// The rows of one key head: all queries of all heads of its group.
struct DecodeJob {
  const AttentionProblem& problem;
  const DecodeEngine* engine;  // for bf16, or null
  bool collect;                // statistics
  std::int64_t sequence, key_head, chunk;
  float* values;   // [rows][Dv]: sums of p v
  RowPart* parts;  // [rows]
  float* weights;  // [rows][kChunkKeys], or null
};

}  // namespace qkv::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_decode.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/score_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE auto load_wide(const T* from) {
  const hn::ScalableTag<float> d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, f16> && !kHalfByInstruction) {
    HWY_ALIGN float wide[hn::MaxLanes(d)];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = static_cast<float>(from[i]);
    return hn::Load(d, wide);
  } else {
    using Lane = std::conditional_t<std::is_same_v<T, bf16>, hwy::bfloat16_t, hwy::float16_t>;
    const hn::Rebind<Lane, decltype(d)> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const Lane*>(from)));
  }
}

// scores[i][j] = q_i . k_j for kRows rows and two keys: the keys are read once for all rows.
template <int kRows, class T>
HWY_INLINE void score_two_keys(const float* q, std::int64_t q_stride, const T* k0, const T* k1,
                               std::int64_t depth, float* scores, std::int64_t stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum0[kRows], sum1[kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) sum0[i] = sum1[i] = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + lanes <= depth; c += lanes) {
    const V x0 = load_wide(k0 + c), x1 = load_wide(k1 + c);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V y = hn::LoadU(d, q + i * q_stride + c);
      sum0[i] = hn::MulAdd(y, x0, sum0[i]);
      sum1[i] = hn::MulAdd(y, x1, sum1[i]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    float a = hn::GetLane(hn::SumOfLanes(d, sum0[i])), b = hn::GetLane(hn::SumOfLanes(d, sum1[i]));
    for (std::int64_t rest = c; rest < depth; ++rest) {
      a += q[i * q_stride + rest] * static_cast<float>(k0[rest]);
      b += q[i * q_stride + rest] * static_cast<float>(k1[rest]);
    }
    scores[i * stride] = a;
    scores[i * stride + 1] = b;
  }
}

template <int kRows, class T>
void score_keys(const float* q, std::int64_t q_stride, const Rows& keys, std::int64_t count,
                std::int64_t depth, float* scores, std::int64_t stride) {
  for (std::int64_t j = 0; j < count; j += 2) {
    const auto* first = reinterpret_cast<const T*>(keys.row(j));
    // The second of an odd last pair is the first again; its score lands in the padding.
    const auto* second = j + 1 < count ? reinterpret_cast<const T*>(keys.row(j + 1)) : first;
    score_two_keys<kRows>(q, q_stride, first, second, depth, scores + j, stride);
  }
}

// sums[i][..] = sum over j of p[i][j] v[j][..], a few vectors of columns at a time.
template <int kRows, class T>
void sum_values(const float* p, std::int64_t stride, const Rows& values, std::int64_t count,
                std::int64_t size, float* sums, std::int64_t sums_stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kVectors = kRows > 4 ? 2 : 4;
  std::int64_t c = 0;
  for (; c + kVectors * lanes <= size; c += kVectors * lanes) {
    V sum[kRows][kVectors];
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const auto* row = reinterpret_cast<const T*>(values.row(j)) + c;
      V x[kVectors];
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) x[v] = load_wide(row + v * lanes);
      HWY_UNROLL(8)
      for (int i = 0; i < kRows; ++i) {
        const V weight = hn::Set(d, p[i * stride + j]);
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(weight, x[v], sum[i][v]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(sum[i][v], d, sums + i * sums_stride + c + v * lanes);
      }
    }
  }
  for (; c < size; ++c) {
    for (int i = 0; i < kRows; ++i) {
      float sum = 0;
      for (std::int64_t j = 0; j < count; ++j) {
        sum += p[i * stride + j] * static_cast<float>(reinterpret_cast<const T*>(values.row(j))[c]);
      }
      sums[i * sums_stride + c] = sum;
    }
  }
}

// Calls body with the number of rows as a constant.
template <class Body>
void with_rows(std::int64_t rows, Body body) {
  switch (rows) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    case 6: return body(std::integral_constant<int, 6>());
    case 7: return body(std::integral_constant<int, 7>());
    default: return body(std::integral_constant<int, 8>());
  }
}

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
    const Rows values =
        rows_of(problem_.v, sequence_.k_batch, job_.key_head, sequence_.k_start + first_);
    dispatch_float(problem_.v.dtype(), [&]<class T>() {
      if (finite<T>(values)) return multiply_values<T>(values);
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

  void multiply_keys() {
    const Rows keys =
        rows_of(problem_.k, sequence_.k_batch, job_.key_head, sequence_.k_start + first_);
    const std::int64_t size = problem_.head_size;
    if (job_.engine != nullptr) {
      const Scratch<bf16> q = load_queries<bf16>();
      job_.engine->scores({q.get(), q_stride_, rows_ == 1 ? 1 : even_rows_},
                          {reinterpret_cast<const bf16*>(keys.data), keys.stride, keys_, size},
                          scores_.get(), kChunkKeys);
      return;
    }
    const Scratch<float> q = load_queries<float>();
    dispatch_float(problem_.k.dtype(), [&]<class T>() {
      with_rows(rows_, [&](auto rows) {
        score_keys<decltype(rows)::value, T>(q.get(), q_stride_, keys, keys_, size, scores_.get(),
                                             kChunkKeys);
      });
    });
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
    const float maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
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
  bool finite(const Rows& values) const {
    const std::int64_t size = problem_.value_size;
    if constexpr (std::is_same_v<T, f16>) {
      std::uint16_t worst = 0;
      for (std::int64_t j = 0; j < keys_; ++j) {
        const auto* row = reinterpret_cast<const f16*>(values.row(j));
        for (std::int64_t i = 0; i < size; ++i) {
          worst = std::max<std::uint16_t>(worst, row[i].bits & 0x7c00);
        }
      }
      return worst < 0x7c00;
    } else {
      for (std::int64_t j = 0; j < keys_; ++j) {
        if (!all_finite(reinterpret_cast<const T*>(values.row(j)), size)) return false;
      }
      return true;
    }
  }

  template <class T>
  void multiply_values(const Rows& values) {
    if (job_.engine != nullptr) return sum_narrow(values);
    with_rows(rows_, [&](auto rows) {
      sum_values<decltype(rows)::value, T>(scores_.get(), kChunkKeys, values, keys_,
                                           problem_.value_size, job_.values, problem_.value_size);
    });
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

void run_decode_chunk(const DecodeJob& job) { DecodeChunk(job).run(); }

void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row) {
  store_row(from, count, to, row);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(run_decode_chunk);
HWY_EXPORT(store_decoded_row);

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t chunks_of(const AttentionSequence& s) {
  return (s.k_visible + kChunkKeys - 1) / kChunkKeys;
}

// A row from its parts, in the order of chunks.
struct DecodedRow {
  bool sees = false;
  float lse = -kInfinity, top_weight = 0, entropy = 0;
  std::int64_t top = -1;
  BlockSums sums;
  std::vector<float> factors;  // of each chunk, to final weights
};

DecodedRow combine(const RowPart* parts, std::int64_t chunks, double sink) {
  DecodedRow row;
  float top = -kInfinity;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const RowPart& part = parts[c * kMostRows];
    row.sums.add(part.sums);
    if (part.total == 0) continue;  // NaN is seen
    row.sees = true;
    if (part.maximum > top) {
      top = part.maximum;
      row.top = part.top;
    }
  }
  row.factors.assign(static_cast<std::size_t>(chunks), 0.0f);
  if (!row.sees) return row;
  const double reference = std::max(double{top}, sink);
  const double sink_part = sink == -kInfinity ? 0 : std::exp(sink - reference);
  double total = sink_part, mean_score = 0;  // mean_score relative to `reference`
  for (std::int64_t c = 0; c < chunks; ++c) {
    const RowPart& part = parts[c * kMostRows];
    if (part.total == 0) continue;
    const double factor = std::exp(part.maximum - reference);
    row.factors[c] = static_cast<float>(factor);
    total += factor * part.total;
    mean_score += factor * (part.weighted + part.total * (part.maximum - reference));
  }
  for (float& factor : row.factors) factor = static_cast<float>(factor / total);
  row.lse = static_cast<float>(reference + std::log(total));
  row.top_weight = static_cast<float>(std::exp(top - reference) / total);
  // H = lse - sum p s, with s = reference + (s - reference) and sum p = 1 - sink_part / total.
  row.entropy = static_cast<float>(
      std::log(total) - mean_score / total +
      (sink_part == 0 ? 0.0 : reference * sink_part / total));
  return row;
}

class Decode {
 public:
  Decode(const AttentionProblem& problem, const AttentionResults& results)
      : problem_(problem), results_(results) {
    const AttentionStatistics& s = results.statistics;
    collect_ = s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
               s.top_weight.defined();
    for (const AttentionSequence& sequence : problem.sequences) {
      chunks_ = std::max(chunks_, chunks_of(sequence));
    }
    const auto pairs = static_cast<std::int64_t>(problem.sequences.size()) * problem.key_heads;
    const std::int64_t rows = std::max<std::int64_t>(pairs * chunks_ * kMostRows, 1);
    values_ = Scratch<float>(rows * problem.value_size);
    parts_.resize(static_cast<std::size_t>(rows));
    if (s.received.defined()) weights_ = Scratch<float>(rows * kChunkKeys);
  }

  void run() {
    const bool native = problem_.q.dtype() == DType::bf16 && native_bf16_engine() != nullptr &&
                        problem_.head_size <= DecodeEngine::kMostDepth &&
                        problem_.value_size <= DecodeEngine::kMostDepth;
    const DecodeEngine* engine = native ? neon_bf16_decode() : nullptr;
    const auto sequences = static_cast<std::int64_t>(problem_.sequences.size());
    parallel_for(sequences * problem_.key_heads * chunks_, [&](std::int64_t at) {
      const std::int64_t chunk = at % chunks_, pair = at / chunks_;
      const std::int64_t sequence = pair / problem_.key_heads, row = at * kMostRows;
      const AttentionSequence& s = problem_.sequences[sequence];
      if (chunk >= chunks_of(s) || s.q_rows == 0) return;
      HWY_DYNAMIC_DISPATCH(run_decode_chunk)
      ({problem_, engine, collect_, sequence, pair % problem_.key_heads, chunk,
        values_.get() + row * problem_.value_size, parts_.data() + row,
        weights_.get() == nullptr ? nullptr : weights_.get() + row * kChunkKeys});
    });
    if (results_.statistics.received.defined()) {
      const Tensor& received = results_.statistics.received;
      std::fill_n(received.data<float>(), received.numel(), 0.0f);
    }
    parallel_for(sequences * problem_.heads, [&](std::int64_t at) {
      finish_head(at / problem_.heads, at % problem_.heads);
    });
  }

 private:
  void finish_head(std::int64_t sequence, std::int64_t head) {
    const AttentionSequence& s = problem_.sequences[sequence];
    const std::int64_t pair = sequence * problem_.key_heads + head / problem_.group();
    const double sink =
        problem_.sinks.defined() ? problem_.sinks.data<float>()[head] : -kInfinity;
    const std::int64_t base =
        (s.q_batch * problem_.heads + head) * results_.lse.size(2) + s.q_start;
    BlockSums sums;
    for (std::int64_t i = 0; i < s.q_rows; ++i) {
      const std::int64_t first =
          pair * chunks_ * kMostRows + head % problem_.group() * s.q_rows + i;
      const DecodedRow row = combine(parts_.data() + first, chunks_of(s), sink);
      write_out(row, first, rows_of(results_.out, s.q_batch, head, s.q_start), i);
      write_row(row, base + i, sums);
      if (weights_.get() != nullptr) add_received(row, first, s, head);
    }
    write_statistics(results_.statistics, sums, sequence * problem_.heads + head);
  }

  void write_out(const DecodedRow& row, std::int64_t first, const Rows& out, std::int64_t i) {
    const std::int64_t size = problem_.value_size;
    const Scratch<float> sum(size);
    std::fill_n(sum.get(), size, 0.0f);
    for (std::size_t c = 0; c < row.factors.size(); ++c) {
      const std::int64_t at = first + static_cast<std::int64_t>(c) * kMostRows;
      if (parts_[static_cast<std::size_t>(at)].total == 0) continue;  // may hold 0 times NaN
      const float* part = values_.get() + at * size;
      for (std::int64_t j = 0; j < size; ++j) sum[j] += part[j] * row.factors[c];
    }
    HWY_DYNAMIC_DISPATCH(store_decoded_row)(sum.get(), size, out, i);
  }

  void write_row(const DecodedRow& row, std::int64_t at, BlockSums& sums) const {
    const AttentionStatistics& s = results_.statistics;
    results_.lse.data<float>()[at] = row.lse;
    if (s.entropy.defined()) s.entropy.data<float>()[at] = row.entropy;
    if (s.top_weight.defined()) s.top_weight.data<float>()[at] = row.top_weight;
    if (s.top_index.defined()) {
      s.top_index.data<std::int32_t>()[at] = static_cast<std::int32_t>(row.sees ? row.top : -1);
    }
    BlockSums one = row.sums;
    if (row.sees) {
      one.rows = 1;
      one.entropy = row.entropy;
      one.entropy_relative = one.pairs > 1 ? row.entropy / std::log(one.pairs) : 0;
      one.saturated = row.top_weight > 0.99f ? 1 : 0;
    }
    sums.add(one);
  }

  void add_received(const DecodedRow& row, std::int64_t first, const AttentionSequence& s,
                    std::int64_t head) const {
    const Tensor& received = results_.statistics.received;
    float* to = received.data<float>() +
                (s.k_batch * problem_.heads + head) * received.size(2) + s.k_start;
    for (std::int64_t j = 0; j < s.k_visible; ++j) {
      const std::int64_t chunk = j / kChunkKeys;
      const float p = weights_[(first + chunk * kMostRows) * kChunkKeys + j % kChunkKeys];
      if (p != 0) to[j] += p * row.factors[chunk];
    }
  }

  const AttentionProblem& problem_;
  const AttentionResults& results_;
  bool collect_ = false;
  std::int64_t chunks_ = 0;
  Scratch<float> values_, weights_;
  std::vector<RowPart> parts_;
};

}  // namespace

bool is_decode(const AttentionProblem& problem) {
  // Dropout is for training; keys with a stride inside rows are for nobody: both go the long way.
  if (problem.dropout > 0 || problem.k.stride(3) != 1 || problem.v.stride(3) != 1) return false;
  std::int64_t most_rows = 0;
  for (const AttentionSequence& sequence : problem.sequences) {
    most_rows = std::max(most_rows, sequence.q_rows * problem.group());
  }
  return most_rows <= kMostRows && problem.q.size(2) > 0;
}

void attention_decode(const AttentionProblem& problem, const AttentionResults& results) {
  Decode(problem, results).run();
}

}  // namespace qkv::cpu
#endif
