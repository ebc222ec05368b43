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

// The rows of one key head: all queries of all heads of its group.
struct DecodeJob {
  const AttentionProblem& problem;
  const DecodeEngine* engine;  // for bf16, or null
  std::int64_t sequence, key_head, chunk;
  float* partial;  // [rows][Dv + 2]: sums of p v, then the maximum and the sum of p
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
    const std::int64_t width = problem_.value_size + 2;
    bool some_hidden = false;
    for (std::int64_t g = 0; g < problem_.group(); ++g) some_hidden |= weigh_head(g);
    const Rows values =
        rows_of(problem_.v, sequence_.k_batch, job_.key_head, sequence_.k_start + first_);
    if (some_hidden && !finite(values)) {
      sum_one_by_one(values);
    } else if (job_.engine != nullptr) {
      sum_narrow(values);
    } else {
      dispatch_float(problem_.v.dtype(), [&]<class T>() {
        with_rows(rows_, [&](auto rows) {
          sum_values<decltype(rows)::value, T>(scores_.get(), kChunkKeys, values, keys_,
                                               problem_.value_size, job_.partial, width);
        });
      });
    }
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

  // Scores of one head's rows to weights relative to the chunk's maximum; whether any is hidden.
  bool weigh_head(std::int64_t g) {
    const std::int64_t head = job_.key_head * problem_.group() + g;
    BlockMask mask(problem_, job_.sequence);
    DiagonalBias diagonal(problem_, job_.sequence, kChunkKeys);
    diagonal.set_head(head);
    mask.set_rows(head, query_rows_.data(), sequence_.q_rows);
    ScoreRows scorer(problem_, job_.sequence, mask, diagonal);
    scorer.set_block(head, query_rows_.data());
    scorer.set_tile(first_, keys_, columns_);
    const bool hidden = mask.classify(first_, first_ + keys_) != TileKind::full;
    const float to_log2 = scorer.unit() * std::numbers::log2e_v<float>;
    for (std::int64_t i = 0; i < sequence_.q_rows; ++i) {
      const std::int64_t r = g * sequence_.q_rows + i;
      float* row = scores_.get() + r * kChunkKeys;
      scorer.finish_row(i, row, hidden || columns_ != keys_, false);
      float* end = job_.partial + r * (problem_.value_size + 2) + problem_.value_size;
      weigh_row(row, narrow_.get() + r * kChunkKeys, to_log2, end);
      end[0] *= scorer.unit();
    }
    return hidden || problem_.bias.defined();
  }

  // row = 2^((s - max) to_log2); result = max, sum.
  void weigh_row(float* row, bf16* narrow, float to_log2, float* result) const {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V largest = hn::LoadU(d, row);
    for (std::int64_t j = lanes; j < columns_; j += lanes) {
      largest = hn::Max(largest, hn::LoadU(d, row + j));
    }
    const float maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
    const V shift = hn::Set(d, maximum == -kInfinity ? 0 : maximum), scale = hn::Set(d, to_log2);
    V sum = hn::Zero(d);
    for (std::int64_t j = 0; j < columns_; j += lanes) {
      const V p = exp2_fast(d, hn::Mul(hn::Sub(hn::LoadU(d, row + j), shift), scale));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, row + j);
    }
    result[0] = maximum;
    result[1] = hn::GetLane(hn::SumOfLanes(d, sum));
    if (job_.engine == nullptr) return;
    for (std::int64_t j = 0; j < columns_; ++j) narrow[j] = bf16(row[j]);
  }

  bool finite(const Rows& values) const {
    const Scratch<float> row(problem_.value_size);
    for (std::int64_t j = 0; j < keys_; ++j) {
      load_rows(values.from(j), 1, problem_.value_size, row.get(), problem_.value_size);
      if (!all_finite(row.get(), problem_.value_size)) return false;
    }
    return true;
  }

  // A hidden value may be NaN: 0 times it must not happen.
  void sum_one_by_one(const Rows& values) {
    const std::int64_t size = problem_.value_size, width = size + 2;
    const Scratch<float> value(size);
    for (std::int64_t r = 0; r < rows_; ++r) std::fill_n(job_.partial + r * width, size, 0.0f);
    for (std::int64_t j = 0; j < keys_; ++j) {
      load_rows(values.from(j), 1, size, value.get(), size);
      for (std::int64_t r = 0; r < rows_; ++r) {
        const float p = scores_[r * kChunkKeys + j];
        if (p == 0) continue;
        for (std::int64_t i = 0; i < size; ++i) job_.partial[r * width + i] += p * value[i];
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
      std::copy_n(sums.get() + r * stride, size, job_.partial + r * (size + 2));
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

// One row from its partial results, in the order of chunks.
void combine_chunks(const float* partial, std::int64_t chunks, std::int64_t chunk_stride,
                    std::int64_t size, float sink, float* out, float* lse) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float top = kLowest;
  bool sees = false;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const float* part = partial + c * chunk_stride;
    if (part[size + 1] != 0) {  // NaN sees
      sees = true;
      top = part[size] > top ? part[size] : top;
    }
  }
  std::fill_n(out, size, 0.0f);
  *lse = kLowest;
  if (!sees) return;
  const float reference = std::max(top, sink);
  double total = sink == kLowest ? 0 : std::exp(double{sink} - reference);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const float* part = partial + c * chunk_stride;
    if (part[size + 1] == 0) continue;
    const auto factor = static_cast<float>(std::exp(double{part[size]} - reference));
    total += double{part[size + 1]} * factor;
    for (std::int64_t i = 0; i < size; ++i) out[i] += part[i] * factor;
  }
  const auto inverse = static_cast<float>(1 / total);
  for (std::int64_t i = 0; i < size; ++i) out[i] *= inverse;
  *lse = static_cast<float>(reference + std::log(total));
}

void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row) {
  store_row(from, count, to, row);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(run_decode_chunk);
HWY_EXPORT(combine_chunks);
HWY_EXPORT(store_decoded_row);

namespace {

bool rows_are_whole(const Tensor& x) { return x.stride(3) == 1; }

}  // namespace

bool is_decode(const AttentionProblem& problem, const AttentionResults& results) {
  const AttentionStatistics& s = results.statistics;
  const bool statistics = s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
                          s.top_weight.defined() || s.received.defined();
  if (statistics || problem.dropout > 0) return false;
  if (!rows_are_whole(problem.k) || !rows_are_whole(problem.v)) return false;
  std::int64_t most_rows = 0;
  for (const AttentionSequence& sequence : problem.sequences) {
    most_rows = std::max(most_rows, sequence.q_rows * problem.group());
  }
  return most_rows <= kMostRows && problem.q.size(2) > 0;
}

void attention_decode(const AttentionProblem& problem, const AttentionResults& results) {
  const bool native = problem.q.dtype() == DType::bf16 && native_bf16_engine() != nullptr &&
                      problem.head_size <= DecodeEngine::kMostDepth &&
                      problem.value_size <= DecodeEngine::kMostDepth;
  const DecodeEngine* engine = native ? neon_bf16_decode() : nullptr;
  const auto sequences = static_cast<std::int64_t>(problem.sequences.size());
  const std::int64_t width = problem.value_size + 2;
  std::int64_t chunks = 0;
  for (const AttentionSequence& s : problem.sequences) {
    chunks = std::max(chunks, (s.k_visible + kChunkKeys - 1) / kChunkKeys);
  }
  const std::int64_t chunk_stride = kMostRows * width;
  const Scratch<float> partial(
      std::max<std::int64_t>(1, sequences * problem.key_heads * chunks * chunk_stride));
  const auto chunks_of = [](const AttentionSequence& s) {
    return (s.k_visible + kChunkKeys - 1) / kChunkKeys;
  };
  parallel_for(sequences * problem.key_heads * chunks, [&](std::int64_t at) {
    const std::int64_t chunk = at % chunks, pair = at / chunks;
    const std::int64_t sequence = pair / problem.key_heads;
    const AttentionSequence& s = problem.sequences[sequence];
    if (chunk >= chunks_of(s) || s.q_rows == 0) return;
    HWY_DYNAMIC_DISPATCH(run_decode_chunk)
    ({problem, engine, sequence, pair % problem.key_heads, chunk,
      partial.get() + at * chunk_stride});
  });
  parallel_for(sequences * problem.heads, [&](std::int64_t at) {
    const std::int64_t sequence = at / problem.heads, head = at % problem.heads;
    const AttentionSequence& s = problem.sequences[sequence];
    const std::int64_t pair = sequence * problem.key_heads + head / problem.group();
    const Scratch<float> row(problem.value_size);
    const Rows out = rows_of(results.out, s.q_batch, head, s.q_start);
    const float sink = problem.sinks.defined() ? problem.sinks.data<float>()[head]
                                               : -std::numeric_limits<float>::infinity();
    float* lse = results.lse.data<float>() +
                 (s.q_batch * problem.heads + head) * results.lse.size(2) + s.q_start;
    for (std::int64_t i = 0; i < s.q_rows; ++i) {
      const std::int64_t r = head % problem.group() * s.q_rows + i;
      HWY_DYNAMIC_DISPATCH(combine_chunks)
      (partial.get() + pair * chunks * chunk_stride + r * width, chunks_of(s), chunk_stride,
       problem.value_size, sink, row.get(), lse + i);
      HWY_DYNAMIC_DISPATCH(store_decoded_row)(row.get(), problem.value_size, out, i);
    }
  });
}

}  // namespace qkv::cpu
#endif
