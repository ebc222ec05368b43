#include "cpu/attention_decode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/threads.h"
#include "cpu/decode_chunk.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "qkv/threads.h"

namespace qkv::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Keys and values beyond that are taken to come from memory, call after call.
constexpr std::int64_t kCacheBytes = std::int64_t{16} << 20;
constexpr std::int64_t kRunsPerThread = 4;  // so that no thread waits long for another at the end

std::int64_t chunks_of(const AttentionProblem& problem, const AttentionSequence& s) {
  const std::int64_t keys = chunk_keys(problem, s);
  return (s.k_visible + keys - 1) / keys;
}

// A row from its parts, in the order of chunks.
struct DecodedRow {
  bool sees = false;
  float lse = -kInfinity, top_weight = 0, entropy = 0;
  std::int64_t top = -1;
  BlockSums sums;
  std::vector<float> factors;  // of each chunk, to final weights
};

DecodedRow combine(const RowPart* parts, std::int64_t step, std::int64_t chunks, double sink) {
  DecodedRow row;
  float top = -kInfinity;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const RowPart& part = parts[c * step];
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
    const RowPart& part = parts[c * step];
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
  row.entropy = static_cast<float>(std::log(total) - mean_score / total +
                                   (sink_part == 0 ? 0.0 : reference * sink_part / total));
  return row;
}

class Decode {
 public:
  Decode(const AttentionProblem& problem, const AttentionResults& results)
      : problem_(problem),
        results_(results),
        left_(problem.sequences.size() * static_cast<std::size_t>(problem.key_heads)) {
    const AttentionStatistics& s = results.statistics;
    collect_ = s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
               s.saturation.defined();
    for (const AttentionSequence& sequence : problem.sequences) {
      chunks_ = std::max(chunks_, chunks_of(problem, sequence));
      rows_ = std::max(rows_, sequence.q_rows * problem.group());
    }
    const auto pairs = static_cast<std::int64_t>(left_.size());
    const std::int64_t rows = std::max<std::int64_t>(pairs * chunks_ * rows_, 1);
    values_ = Scratch<float>(rows * problem.value_size);
    parts_.resize(static_cast<std::size_t>(rows));
    if (s.received.defined()) weights_ = Scratch<float>(rows * kMostChunkKeys);
  }

  void run() {
    const bool narrow = problem_.head_size <= DecodeEngine::kMostDepth &&
                        problem_.value_size <= DecodeEngine::kMostDepth;
    const DecodeEngine* engine = narrow ? decode_engine(problem_.k.dtype()) : nullptr;
    const auto fits = [](std::int64_t size) {
      return size <= Int8Decode::kMostDepth && size % Int8Decode::kDepthMultiple == 0;
    };
    const bool whole = problem_.k.dtype() == DType::i8 && fits(problem_.head_size) &&
                       fits(problem_.value_size) && &int8_engine() != &portable_int8_engine();
    const int digits = problem_.q.dtype() == DType::f32 ? 3 : 2;
    const Int8Decode* bytes = whole ? neon_int8_decode(digits) : nullptr;
    if (results_.statistics.received.defined()) {
      const Tensor& received = results_.statistics.received;
      std::fill_n(received.data<float>(), received.numel(), 0.0f);
    }
    const std::vector<Run> runs = runs_of_chunks();
    const bool from_memory = bytes_read() > kCacheBytes;
    parallel_for(static_cast<std::int64_t>(runs.size()), [&](std::int64_t at) {
      const auto [sequence, key_head, first, last] = runs[static_cast<std::size_t>(at)];
      const std::int64_t pair = sequence * problem_.key_heads + key_head;
      const DecodeResult all{values_.get(), parts_.data(), weights_.get()};
      if (first < last) {
        run_decode_chunks(
            {problem_, engine, bytes, collect_, from_memory, sequence, key_head, first, last,
             all.from_row((pair * chunks_ + first) * rows_, problem_.value_size), rows_});
      }
      // Who is done last with a key head puts together what its chunks have found.
      if (left_[static_cast<std::size_t>(pair)].fetch_sub(last - first) > last - first) return;
      for (std::int64_t g = 0; g < problem_.group(); ++g) {
        finish_head(sequence, key_head * problem_.group() + g);
      }
    });
  }

 private:
  // Chunks [first, last) of a key head of a sequence.
  struct Run {
    std::int64_t sequence, key_head, first, last;
  };

  // Whole key heads, which are prepared once, or parts of them where they are few; one run at least
  // for each. Results are per chunk: how they are handed out changes no bit.
  std::vector<Run> runs_of_chunks() {
    const auto count = static_cast<std::int64_t>(problem_.sequences.size());
    const auto chunks = [&](std::int64_t sequence) {
      const AttentionSequence& s = problem_.sequences[sequence];
      return s.q_rows == 0 ? 0 : chunks_of(problem_, s);
    };
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < count; ++i) total += problem_.key_heads * chunks(i);
    const std::int64_t most = std::max<std::int64_t>(total / (kRunsPerThread * num_threads()), 1);
    std::vector<Run> runs;
    for (std::int64_t at = 0; at < count * problem_.key_heads; ++at) {
      const std::int64_t sequence = at / problem_.key_heads, end = chunks(sequence);
      left_[static_cast<std::size_t>(at)] = end;
      const std::int64_t parts = std::max<std::int64_t>((end + most - 1) / most, 1);
      for (std::int64_t part = 0; part < parts; ++part) {
        runs.push_back(
            {sequence, at % problem_.key_heads, end * part / parts, end * (part + 1) / parts});
      }
    }
    return runs;
  }

  std::int64_t bytes_read() const {
    std::int64_t keys = 0;
    for (const AttentionSequence& s : problem_.sequences) keys += s.k_visible;
    return keys * problem_.key_heads * (problem_.head_size + problem_.value_size) *
           static_cast<std::int64_t>(size_of(problem_.k.dtype()));
  }

  void finish_head(std::int64_t sequence, std::int64_t head) {
    const AttentionSequence& s = problem_.sequences[sequence];
    const std::int64_t pair = sequence * problem_.key_heads + head / problem_.group();
    const double sink = problem_.sinks.defined() ? problem_.sinks.data<float>()[head] : -kInfinity;
    const std::int64_t base =
        (s.q_batch * problem_.heads + head) * results_.lse.size(2) + s.q_start;
    BlockSums sums;
    for (std::int64_t i = 0; i < s.q_rows; ++i) {
      const std::int64_t first = pair * chunks_ * rows_ + head % problem_.group() * s.q_rows + i;
      const DecodedRow row = combine(parts_.data() + first, rows_, chunks_of(problem_, s), sink);
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
      const std::int64_t at = first + static_cast<std::int64_t>(c) * rows_;
      if (parts_[static_cast<std::size_t>(at)].total == 0) continue;  // may hold 0 times NaN
      const float* part = values_.get() + at * size;
      for (std::int64_t j = 0; j < size; ++j) sum[j] += part[j] * row.factors[c];
    }
    store_decoded_row(sum.get(), size, out, i);
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
    float* to =
        received.data<float>() + (s.k_batch * problem_.heads + head) * received.size(2) + s.k_start;
    const std::int64_t keys = chunk_keys(problem_, s);
    for (std::int64_t j = 0; j < s.k_visible; ++j) {
      const std::int64_t chunk = j / keys;
      const float p = weights_[(first + chunk * rows_) * kMostChunkKeys + j % keys];
      if (p != 0) to[j] += p * row.factors[chunk];
    }
  }

  const AttentionProblem& problem_;
  const AttentionResults& results_;
  bool collect_ = false;
  std::int64_t chunks_ = 0, rows_ = 0;  // of a sequence and key head: the most of either
  Scratch<float> values_, weights_;
  std::vector<RowPart> parts_;
  std::vector<std::atomic<std::int64_t>> left_;  // chunks of a sequence and key head, not done yet
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

bool reads_pages(const AttentionProblem& problem) { return is_decode(problem); }

Rows key_rows(const AttentionProblem& problem, const Tensor& x, const KeyRun& run,
              Scratch<std::byte>& room) {
  const AttentionSequence& s = problem.sequences[run.sequence];
  if (!problem.pages.defined()) return rows_of(x, s.k_batch, run.key_head, s.k_start + run.first);
  const std::int64_t page = x.size(2), width = x.size(3);
  const auto* table = problem.pages.data<std::int32_t>() + run.sequence * problem.pages.stride(0);
  const auto from = [&](std::int64_t key) {
    return rows_of(x, table[key / page], run.key_head, key % page);
  };
  const Rows first = from(run.first);
  if (run.first % page + run.count <= page) return first;  // all in one page
  const auto bytes = width * static_cast<std::int64_t>(size_of(x.dtype()));
  room = Scratch<std::byte>(run.count * bytes);
  for (std::int64_t j = 0; j < run.count; ++j) {
    std::memcpy(room.get() + j * bytes, from(run.first + j).data, static_cast<std::size_t>(bytes));
  }
  return {room.get(), first.dtype, width, 1};
}

void attention_decode(const AttentionProblem& problem, const AttentionResults& results) {
  Decode(problem, results).run();
}

}  // namespace qkv::cpu
