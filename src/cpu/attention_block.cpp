#include "cpu/attention_block.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_block.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/rows-inl.h"
#include "cpu/softmax_tile-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

// With `finite`: whether all rows are. NaN and infinities are then packed as 0, because a hidden
// one must not meet a weight of 0; Block::add_non_finite adds them where they are seen.
template <class T>
void pack_rows(const AttentionEngine& engine, const Rows& rows, std::int64_t count,
               const TileExtents& size, bool transposed, void* packed, std::uint8_t* finite) {
  const std::int64_t columns = transposed ? size.depth : size.columns;
  Scratch<T> copy;
  const T* source = reinterpret_cast<const T*>(rows.data);
  std::int64_t stride = rows.stride;
  if (rows.dtype != dtype_of<T> || rows.step != 1) {
    copy = Scratch<T>(std::max<std::int64_t>(count, 1) * columns);
    load_rows(rows, count, columns, copy.get(), columns);
    source = copy.get();
    stride = columns;
  }
  if (finite != nullptr) {
    *finite = 1;
    const bool whole = stride == columns;  // one long row
    for (std::int64_t r = 0; r < (whole ? 1 : count); ++r) {
      if (!all_finite(source + r * stride, whole ? count * columns : columns)) *finite = 0;
    }
    if (*finite == 0) {
      if (copy.get() == nullptr) copy = Scratch<T>(count * columns);
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t i = 0; i < columns; ++i) {
          const T x = source[r * stride + i];
          copy[r * columns + i] = std::isfinite(static_cast<float>(x)) ? x : T(0.0f);
        }
      }
      source = copy.get();
      stride = columns;
    }
  }
  (transposed ? engine.pack_transposed : engine.pack)(source, stride, count, size, packed);
}

// V need not be copied where it already is what the engine would copy it to. Rows far apart are
// copied all the same: their cache lines would fight for the same few sets.
inline bool values_as_rows(const AttentionProblem& problem, const AttentionEngine& engine,
                           const AttentionSequence& s) {
  const Tensor& v = problem.v;
  const std::int64_t uses = std::max<std::int64_t>(s.q_rows, 1) * problem.group();
  return uses <= engine.uses_as_rows && v.dtype() == engine.operand && v.stride(3) == 1 &&
         v.size(3) % engine.column_multiple == 0 && v.stride(2) > 0 && v.stride(2) <= 2 * v.size(3);
}

// Whether some row may not see all keys. Otherwise no value, finite or not, meets a weight that is
// 0 because its key is hidden.
inline bool may_hide(const AttentionProblem& p) {
  return p.causal || p.left >= 0 || p.right >= 0 || p.allowed.defined() || p.bias.defined() ||
         p.has_diagonal_bias() || p.dropout != 0;
}

void pack_tile_target(const AttentionProblem& problem, const AttentionEngine& engine,
                      const PackedTiles& packed, std::int64_t sequence, std::int64_t key_head,
                      std::int64_t tile) {
  const AttentionSequence& s = problem.sequences[sequence];
  const std::int64_t first = tile * engine.tile_keys;
  const std::int64_t count = std::min(engine.tile_keys, s.k_visible - first);
  const auto pack_one = [&](const Tensor& x, bool transposed, const TileExtents& size, void* to,
                            std::uint8_t* finite) {
    const Rows rows = rows_of(x, s.k_batch, key_head, s.k_start + first);
    if (engine.operand == DType::bf16) {
      pack_rows<bf16>(engine, rows, count, size, transposed, to, finite);
    } else {
      pack_rows<float>(engine, rows, count, size, transposed, to, finite);
    }
  };
  pack_one(problem.k, true, {0, engine.tile_keys, problem.head_size},
           packed.keys + tile * packed.key_bytes, nullptr);
  if (packed.values == nullptr) return;
  std::uint8_t* finite = packed.values_finite + tile;
  *finite = 1;
  const bool hides = may_hide(problem);
  if (values_as_rows(problem, engine, s)) {
    if (!hides) return;
    const Rows rows = rows_of(problem.v, s.k_batch, key_head, s.k_start + first);
    for (std::int64_t r = 0; r < count && *finite != 0; ++r) {
      *finite = all_finite(reinterpret_cast<const float*>(rows.row(r)), problem.value_size) ? 1 : 0;
    }
    if (*finite != 0) return;
  }
  pack_one(problem.v, false, {0, problem.value_size, engine.tile_keys},
           packed.values + tile * packed.value_bytes, hides ? finite : nullptr);
}

// The state of a block while its tiles go by; used for one block after another.
class Block {
 public:
  explicit Block(const BlockJob& job)
      : job_(job),
        problem_(job.problem),
        engine_(job.engine),
        sequence_(job.problem.sequences[job.sequence]),
        rows_(round_up(std::min(job.count, job.engine.tile_rows), job.engine.row_multiple)),
        q_stride_(round_up(problem_.head_size, engine_.depth_multiple)),
        o_stride_(
            round_up(std::max<std::int64_t>(problem_.value_size, 1), engine_.column_multiple)),
        has_values_(job.packed.values != nullptr),
        values_as_rows_(has_values_ && values_as_rows(problem_, engine_, sequence_)),
        keeps_weights_(job.received != nullptr || job.weights != nullptr),
        q_(rows_of(problem_.q, sequence_.q_batch, job.head, sequence_.q_start)),
        queries_(round_up(rows_, engine_.rows_together) * q_stride_ * item()),
        scores_(rows_ * engine_.tile_keys),
        narrow_(is_bf16() ? rows_ * engine_.tile_keys : 0),
        sums_(has_values_ ? rows_ * o_stride_ : 0),
        softmax_(job, rows_) {
    if (has_values_) {
      v_ = rows_of(problem_.v, sequence_.k_batch, job.head / problem_.group(), sequence_.k_start);
    }
    if (job.results != nullptr) {
      out_ = rows_of(job.results->out, sequence_.q_batch, job.head, sequence_.q_start);
    }
  }

  // The rows [first, first + tile_rows) of the job.
  void run(std::int64_t first_row) {
    first_row_ = first_row;
    block_rows_ = job_.rows + first_row;
    count_ = std::min(engine_.tile_rows, job_.count - first_row);
    job_.mask.set_rows(job_.head, block_rows_, count_);
    softmax_.begin(block_rows_, count_);
    load_queries();
    started_ = false;
    const KeyInterval reach = job_.mask.reach();
    if (keeps_weights_) prepare_kept_weights();
    for (std::int64_t tile = reach.begin / engine_.tile_keys; tile * engine_.tile_keys < reach.end;
         ++tile) {
      const std::int64_t first = tile * engine_.tile_keys;
      // Keys past the reach of the block are not computed: half a tile on a causal diagonal.
      const std::int64_t count = std::min(engine_.tile_keys, reach.end - first);
      const TileKind kind = job_.mask.classify(first, first + count);
      if (kind != TileKind::hidden) run_tile(tile, first, count, kind);
    }
    finish();
  }

 private:
  bool is_bf16() const { return engine_.operand == DType::bf16; }
  std::int64_t item() const { return static_cast<std::int64_t>(size_of(engine_.operand)); }

  // Q as the engine multiplies it: as it lies, or a copy in the engine's dtype, padded with zeros.
  void load_queries() {
    if (engine_.rows_together > 1 && sequence_.k_visible > engine_.uses_as_rows) {
      return turn_queries();
    }
    const std::int64_t size = problem_.head_size, row_bytes = q_stride_ * item();
    const bool in_order = block_rows_[count_ - 1] - block_rows_[0] == count_ - 1;
    const bool is_whole = size == q_stride_ && count_ % engine_.row_multiple == 0;
    if (q_.dtype == engine_.operand && q_.step == 1 && in_order && is_whole) {
      left_ = {q_.row(block_rows_[0]), q_.stride};
      return;
    }
    for (std::int64_t r = 0; r < count_; ++r) {
      const Rows row = q_.from(block_rows_[r]);
      std::byte* to = queries_.get() + r * row_bytes;
      if (is_bf16()) {
        load_rows(row, 1, size, reinterpret_cast<bf16*>(to), q_stride_);
      } else {
        load_rows(row, 1, size, reinterpret_cast<float*>(to), q_stride_);
      }
    }
    std::memset(queries_.get() + count_ * row_bytes, 0,
                static_cast<std::size_t>((rows_ - count_) * row_bytes));
    left_ = {queries_.get(), q_stride_};
  }

  void turn_queries() {
    if (is_bf16()) {
      turn_queries_as<bf16>();
    } else {
      turn_queries_as<float>();
    }
    left_ = {queries_.get(), q_stride_, true};
  }
  template <class T>
  void turn_queries_as() {
    const std::int64_t size = problem_.head_size, together = engine_.rows_together;
    const Scratch<T> copy(together * q_stride_);
    auto* to = reinterpret_cast<T*>(queries_.get());
    for (std::int64_t r = 0; r < count_; r += together, to += together * q_stride_) {
      const std::int64_t count = std::min(together, count_ - r);
      const std::int64_t* rows = block_rows_ + r;
      const bool as_it_lies = q_.dtype == engine_.operand && q_.step == 1 && size == q_stride_ &&
                              count == together && rows[count - 1] - rows[0] == count - 1;
      if (as_it_lies) {
        engine_.turn(q_.row(rows[0]), q_.stride, q_stride_, to);
        continue;
      }
      std::fill_n(copy.get(), together * q_stride_, T(0.0f));
      for (std::int64_t i = 0; i < count; ++i) {
        load_rows(q_.from(rows[i]), 1, size, copy.get() + i * q_stride_, q_stride_);
      }
      engine_.turn(copy.get(), q_stride_, q_stride_, to);
    }
  }

  void run_tile(std::int64_t tile, std::int64_t first, std::int64_t count, TileKind kind) {
    const std::int64_t stride = engine_.tile_keys;
    // Weights that are kept are made where they stay, unless dropout changes those to be
    // multiplied.
    float* const kept = keeps_weights_ ? kept_tile(std::ssize(kept_first_)) : nullptr;
    const bool in_place = keeps_weights_ && problem_.dropout == 0;
    TileScores scores{.scores = in_place ? kept : scores_.get(),
                      .narrow = is_bf16() ? narrow_.get() : nullptr,
                      .stride = stride,
                      .first_key = first,
                      .keys = count,
                      // Columns past the last key are computed as hidden, up to whole vectors.
                      .columns = std::min(stride, round_up(count, 32)),
                      .partial = kind == TileKind::partial || round_up(count, 32) != count,
                      .kept = in_place && !is_bf16() ? nullptr : kept};
    engine_.multiply(
        left_,
        {job_.packed.keys + tile * job_.packed.key_bytes, engine_.tile_keys, problem_.head_size},
        scores.scores, stride, {count_, count, problem_.head_size}, false);
    softmax_.step(scores, started_ ? sums_.get() : nullptr, o_stride_);
    if (keeps_weights_) note_maxima(first);
    if (!has_values_) return;
    const void* weights = is_bf16() ? static_cast<const void*>(narrow_.get()) : scores.scores;
    engine_.multiply({weights, stride, is_bf16() && kWeightsTurned}, values(tile), sums_.get(),
                     o_stride_, {count_, problem_.value_size, count}, started_);
    started_ = true;
    if (job_.packed.values_finite[tile] == 0) add_non_finite(scores);
  }

  PackedOperand values(std::int64_t tile) const {
    const std::int64_t size = problem_.value_size, keys = engine_.tile_keys;
    if (!values_as_rows_ || job_.packed.values_finite[tile] == 0) {
      return {job_.packed.values + tile * job_.packed.value_bytes, size, keys};
    }
    return {v_.row(tile * keys), size, keys, v_.stride};
  }

  // The NaN and infinities of the values, left out of the product, for the rows that see them.
  void add_non_finite(const TileScores& tile) {
    const std::int64_t size = problem_.value_size;
    const Scratch<float> value(size);
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      load_rows(v_.from(tile.first_key + j), 1, size, value.get(), size);
      if (all_finite(value.get(), size)) continue;
      for (std::int64_t r = 0; r < count_; ++r) {
        if (!softmax_.sees(r, j)) continue;
        const float p = tile.narrow != nullptr ? static_cast<float>(*tile.narrow_at(r, j))
                                               : tile.scores[r * tile.stride + j];
        for (std::int64_t i = 0; i < size; ++i) {
          if (!std::isfinite(value[i])) sums_[r * o_stride_ + i] += p * value[i];
        }
      }
    }
  }

  // Weights are final only when the last tile has been seen. Until then each tile's are kept
  // relative to the maximum of its time: O(rows of a block x S), not S x S.
  void prepare_kept_weights() {
    if (kept_.get() == nullptr) {
      const std::int64_t tiles = (sequence_.k_visible + engine_.tile_keys - 1) / engine_.tile_keys;
      kept_ = Scratch<float>(tiles * rows_ * engine_.tile_keys);
      kept_max_ = Scratch<float>(tiles * rows_);
      factors_ = Scratch<float>(rows_);
      received_ = Scratch<float>(engine_.tile_keys);
    }
    kept_first_.clear();
  }
  // Tile by tile, so that what is read together lies together.
  float* kept_tile(std::int64_t t) const { return kept_.get() + t * rows_ * engine_.tile_keys; }
  void note_maxima(std::int64_t first_key) {
    float* const to = kept_max_.get() + std::ssize(kept_first_) * rows_;
    std::copy_n(softmax_.maxima(), count_, to);
    kept_first_.push_back(first_key);
  }
  void hand_out_weights() {
    for (std::int64_t t = 0; t < std::ssize(kept_first_); ++t) {
      const std::int64_t first = kept_first_[static_cast<std::size_t>(t)];
      const std::int64_t count = std::min(engine_.tile_keys, job_.mask.reach().end - first);
      softmax_.final_factors(kept_max_.get() + t * rows_, factors_.get());
      if (job_.received != nullptr) add_received(kept_tile(t), count, job_.received + first);
      for (std::int64_t r = 0; r < count_ && job_.weights != nullptr; ++r) {
        const float* from = kept_tile(t) + r * engine_.tile_keys;
        float* to = job_.weights + (first_row_ + r) * job_.weights_stride + first;
        for (std::int64_t j = 0; j < count; ++j) to[j] = from[j] == 0 ? 0 : from[j] * factors_[r];
      }
    }
  }
  // received += the sum over rows of weights times factors.
  void add_received(const float* kept, std::int64_t count, float* received) {
    if (!all_finite(factors_.get(), count_)) return add_received_by_pairs(kept, count, received);
    constexpr std::int64_t kFew = 32, kLanes = hn::MaxLanes(hn::ScalableTag<float>());
    constexpr std::int64_t kMany = HWY_TARGET == HWY_NEON ? 64 : kLanes >= 8 ? 96 : kFew;
    std::int64_t j = 0;  // tiles are whole multiples of 32 keys
    for (; j + kMany <= round_up(count, kFew); j += kMany) sum_columns<kMany>(kept + j, j);
    for (; j < count; j += kFew) sum_columns<kFew>(kept + j, j);
    for (j = 0; j < count; ++j) received[j] += received_[j];
  }
  // Their sums stay in registers while rows go by. A chain of them would be waited for: as many
  // columns as fit.
  template <std::int64_t kColumns>
  HWY_INLINE void sum_columns(const float* row, std::int64_t first) {
    const hn::ScalableTag<float> d;
    using V = hn::Vec<decltype(d)>;
    constexpr std::int64_t kTogether = kColumns / hn::MaxLanes(d);
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V sums[kTogether];
    HWY_UNROLL(16)
    for (V& sum : sums) sum = hn::Zero(d);
    for (std::int64_t r = 0; r < count_; ++r, row += engine_.tile_keys) {
      const V factor = hn::Set(d, factors_[r]);
      HWY_UNROLL(16)
      for (std::int64_t i = 0; i < kTogether; ++i) {
        sums[i] = hn::MulAdd(hn::LoadU(d, row + i * lanes), factor, sums[i]);
      }
    }
    HWY_UNROLL(16)
    for (std::int64_t i = 0; i < kTogether; ++i) {
      hn::StoreU(sums[i], d, received_.get() + first + i * lanes);
    }
  }
  // A weight of 0 stays 0 even in a row whose factor is NaN.
  void add_received_by_pairs(const float* kept, std::int64_t count, float* received) {
    for (std::int64_t r = 0; r < count_; ++r, kept += engine_.tile_keys) {
      for (std::int64_t j = 0; j < count; ++j) {
        if (kept[j] != 0) received[j] += kept[j] * factors_[r];
      }
    }
  }

  void finish() {
    softmax_.finish();
    if (keeps_weights_) hand_out_weights();
    for (std::int64_t r = 0; r < count_ && job_.maxima != nullptr; ++r) {
      job_.maxima[first_row_ + r] = softmax_.maxima()[r];
      job_.factors[first_row_ + r] = softmax_.factor(r);
    }
    if (job_.results == nullptr) return;
    const AttentionResults& results = *job_.results;
    softmax_.write_output(sums_.get(), o_stride_, problem_.value_size, out_);
    const std::int64_t heads = problem_.heads, all_rows = results.lse.size(2);
    const std::int64_t base =
        (sequence_.q_batch * heads + job_.head) * all_rows + sequence_.q_start;
    softmax_.write_rows(results, base);
    if (job_.sums != nullptr) job_.sums[first_row_ / engine_.tile_rows] = softmax_.block_sums();
  }

  const BlockJob& job_;
  const AttentionProblem& problem_;
  const AttentionEngine& engine_;
  const AttentionSequence& sequence_;
  std::int64_t rows_, q_stride_, o_stride_;
  std::int64_t first_row_ = 0, count_ = 0;  // of the block at hand
  const std::int64_t* block_rows_ = nullptr;
  bool has_values_, values_as_rows_, keeps_weights_;
  Rows q_, v_, out_;  // of the sequence and the head
  Scratch<std::byte> queries_;
  LeftOperand left_{};    // Q as the engine multiplies it
  bool started_ = false;  // the output sums hold a tile
  Scratch<float> scores_;
  Scratch<bf16> narrow_;
  Scratch<float> sums_;  // of p v, relative to the running maximum
  SoftmaxRows softmax_;
  Scratch<float> kept_;
  Scratch<float> kept_max_, factors_, received_;
  std::vector<std::int64_t> kept_first_;
};

void run_blocks_target(const BlockJob& job) {
  Block block(job);
  if (job.engine.begin != nullptr) job.engine.begin();
  for (std::int64_t row = 0; row < job.count; row += job.engine.tile_rows) block.run(row);
  if (job.engine.end != nullptr) job.engine.end();
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(pack_tile_target);
HWY_EXPORT(run_blocks_target);

void pack_tile(const AttentionProblem& problem, const AttentionEngine& engine,
               const PackedTiles& packed, std::int64_t sequence, std::int64_t key_head,
               std::int64_t tile) {
  HWY_DYNAMIC_DISPATCH(pack_tile_target)(problem, engine, packed, sequence, key_head, tile);
}

void run_blocks(const BlockJob& job) { HWY_DYNAMIC_DISPATCH(run_blocks_target)(job); }

PackedTiles packed_sizes(const AttentionProblem& problem, const AttentionEngine& engine) {
  const auto item = static_cast<std::int64_t>(size_of(engine.operand));
  PackedTiles sizes;
  sizes.key_bytes =
      round_up(round_up(problem.head_size, engine.depth_multiple) * engine.tile_keys * item, 64);
  sizes.value_bytes =
      round_up(round_up(problem.value_size, engine.column_multiple) * engine.tile_keys * item, 64);
  return sizes;
}

PackedKeys::PackedKeys(const AttentionProblem& problem, const AttentionEngine& engine,
                       std::int64_t sequence, std::int64_t head)
    : tiles_(packed_sizes(problem, engine)) {
  const std::int64_t keys = problem.sequences[sequence].k_visible;
  const std::int64_t count = (keys + engine.tile_keys - 1) / engine.tile_keys;
  keys_ = Scratch<std::byte>(count * tiles_.key_bytes);
  tiles_.keys = keys_.get();
  for (std::int64_t tile = 0; tile < count; ++tile) {
    pack_tile(problem, engine, tiles_, sequence, head / problem.group(), tile);
  }
}

void write_statistics(const AttentionStatistics& statistics, const BlockSums& sums,
                      std::int64_t at) {
  const auto write = [at](const Tensor& x, double value) {
    if (x.defined()) x.data<float>()[at] = static_cast<float>(value);
  };
  const double rows = std::max(sums.rows, 1.0), pairs = std::max(sums.pairs, 1.0);
  write(statistics.max_logit, sums.max_logit);
  write(statistics.score_mean, sums.mean);
  write(statistics.score_var, sums.deviation / pairs);
  write(statistics.entropy_mean, sums.entropy / rows);
  write(statistics.entropy_relative, sums.entropy_relative / rows);
  write(statistics.saturation, sums.saturated / rows);
}

void BlockSums::add(const BlockSums& other) {
  max_logit = larger(max_logit, other.max_logit);
  rows += other.rows;
  entropy += other.entropy;
  entropy_relative += other.entropy_relative;
  saturated += other.saturated;
  if (other.pairs == 0) return;
  const double total = pairs + other.pairs, gap = other.mean - mean;
  mean += gap * other.pairs / total;
  deviation += other.deviation + gap * gap * pairs * other.pairs / total;
  pairs = total;
}

}  // namespace qkv::cpu
#endif
