// Online softmax over the rows of a block: scores of one tile in, weights relative to the running
// maximum out, and on the way everything that the statistics need. Per-target code.
#if defined(QKV_CPU_SOFTMAX_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_SOFTMAX_TILE_INL_H_
#undef QKV_CPU_SOFTMAX_TILE_INL_H_
#else
#define QKV_CPU_SOFTMAX_TILE_INL_H_
#endif

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/attention_block.h"
#include "cpu/exp-inl.h"
#include "cpu/score_moments-inl.h"
#include "cpu/score_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The engine that multiplies bf16 on Arm takes weights as its `turn` leaves rows: four of one row,
// four of the other of a pair, and so on. Others take rows.
inline constexpr bool kWeightsTurned = HWY_TARGET == HWY_NEON;

// 0, 1, 2, ...: the columns of a tile.
inline constexpr auto kColumns = [] {
  std::array<std::int32_t, kMostTileKeys> columns{};
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<std::int32_t>(i);
  return columns;
}();

// One tile of a block: rows of scores, `stride` apart, overwritten by weights.
struct TileScores {
  float* scores;
  bf16* narrow;  // where weights go instead when the engine multiplies bf16
  std::int64_t stride;
  std::int64_t first_key, keys, columns;  // columns >= keys, whole vectors
  bool partial;                           // some pair is hidden
  float* kept;                            // a copy of the weights before dropout, or null

  bf16* narrow_at(std::int64_t r, std::int64_t j) const {
    if (!kWeightsTurned) return narrow + r * stride + j;
    return narrow + r / 2 * 2 * stride + j / 4 * 8 + r % 2 * 4 + j % 4;
  }
};

class SoftmaxRows {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Rows whose scores become weights before the next: so many stay in the first-level cache from
  // one look to the next, which a tile does not. Whole vectors of rows.
  static constexpr std::int64_t kWarmRows = 16;
  static constexpr std::int64_t kSurveyed = ScoreMoments::kMostRows;  // of them at a time
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  SoftmaxRows(const BlockJob& job, std::int64_t rows)
      : job_(job),
        scorer_(job.problem, job.sequence, job.mask, job.diagonal),
        lanes_(static_cast<std::int64_t>(hn::Lanes(D()))),
        collect_(job.sums != nullptr),
        find_top_(collect_ && job.results->statistics.top_index.defined()),
        entropy_(collect_ && job.results->statistics.entropy_mean.defined()),
        survey_(entropy_ || (collect_ && job.results->statistics.score_mean.defined())),
        unit_(scorer_.unit()),
        to_log2_(scorer_.unit() * std::numbers::log2e_v<float>),
        least_(least_exponent(to_log2_)),
        maximum_(rows + lanes_),
        factor_(rows + lanes_),
        shift_(rows + lanes_),
        total_(rows * lanes_),
        weighted_(entropy_ ? rows * lanes_ : 0),
        change_(entropy_ ? rows + lanes_ : 0),
        visible_(collect_ ? rows : 0),
        top_(collect_ ? rows : 0),
        risen_(find_top_ ? rows : 0),
        keep_(job.problem.dropout > 0 ? job.engine.tile_keys : 0),
        results_(rows) {}

  // Starts a block of rows.
  void begin(const std::int64_t* block_rows, std::int64_t count) {
    rows_ = block_rows;
    count_ = count;
    scorer_.set_block(job_.head, block_rows);
    std::fill_n(maximum_.get(), round_up(count, lanes_), -kInfinity);
    std::fill_n(shift_.get(), round_up(count, lanes_), -kInfinity);
    std::fill_n(total_.get(), count * lanes_, 0.0f);
    if (!collect_) return;
    if (entropy_) std::fill_n(weighted_.get(), count * lanes_, 0.0f);
    std::fill_n(visible_.get(), count, 0.0f);
    std::fill_n(top_.get(), count, -1);
    moments_.begin();
  }

  // Turns the tile's scores into weights and rescales the output sums (null: none) where a row
  // found a larger maximum.
  void step(const TileScores& tile, float* sums, std::int64_t sums_stride) {
    scorer_.set_tile(tile.first_key, tile.keys, tile.columns);
    for (std::int64_t first = 0; first < count_; first += kWarmRows) {
      step_rows(tile, {first, std::min(first + kWarmRows, count_)});
    }
    if (sums != nullptr) rescale(sums, sums_stride);
  }

  const float* maxima() const { return maximum_.get(); }
  // After finish(): p = 2^((s - maximum) unit log2 e) times this; 0 in a row that sees nothing.
  float factor(std::int64_t r) const { return results_[r].factor; }
  bool sees(std::int64_t r, std::int64_t column) { return scorer_.sees(r, column); }

  // Row totals, with the sink; after the last tile. Then a factor is from a weight relative to the
  // row's maximum to the weight.
  void finish() {
    const bool has_sink = job_.problem.sinks.defined();
    const double sink = has_sink ? job_.problem.sinks.data<float>()[job_.head] : -kInfinity;
    for (std::int64_t r = 0; r < count_; ++r) {
      Result& result = results_[r];
      result = {};
      factor_[r] = 0;
      const double total = sum_of(total_.get() + r * lanes_);
      result.sees = total != 0;  // NaN sees
      result.largest = largest_score(maximum_[r], total);
      if (!result.sees) continue;
      const double top_score = double{maximum_[r]} * unit_;
      const double reference = std::max(top_score, sink);
      const double factor = has_sink ? std::exp(top_score - reference) : 1.0;
      const double sink_part = has_sink ? std::exp(sink - reference) : 0.0;
      const double all = total * factor + sink_part, log_all = std::log(all);
      result.lse = static_cast<float>(reference + log_all);
      const double share = factor / all;
      factor_[r] = result.factor = static_cast<float>(share);
      if (!entropy_) continue;
      // H = lse - sum p s, arranged so that large scores cancel before they are rounded.
      const double weighted = unit_ * sum_of(weighted_.get() + r * lanes_);
      result.entropy = static_cast<float>(log_all + (reference - top_score) +
                                          (sink_part == 0 ? 0.0 : top_score * sink_part / all) -
                                          weighted * share);
    }
  }

  // For each row, from a weight kept when its maximum was then[r] to the final one; after finish().
  void final_factors(const float* then, float* to) const {
    const D d;
    const V scale = hn::Set(d, to_log2_);
    for (std::int64_t r = 0; r < count_; r += lanes_) {
      const V now = hn::LoadU(d, maximum_.get() + r);
      const V change = exp2_fast(d, hn::Mul(hn::Sub(hn::LoadU(d, then + r), or_zero(now)), scale));
      hn::StoreU(hn::Mul(change, hn::LoadU(d, factor_.get() + r)), d, to + r);
    }
  }

  // Rows of out = their sums, `stride` apart, times the final factors; sums past `count` may be
  // written.
  void write_output(float* sums, std::int64_t stride, std::int64_t count, const Rows& out) const {
    const bool in_order = out.step == 1;
    const bool narrowed =
        in_order && out.dtype == DType::bf16 && job_.engine.store_scaled != nullptr;
    const bool direct = in_order && out.dtype == DType::f32 && count % lanes_ == 0;
    for (std::int64_t r = 0; r < count_; ++r, sums += stride) {
      std::byte* row = out.row(rows_[r]);
      float* to = direct ? reinterpret_cast<float*>(row) : sums;
      if (!results_[r].sees) {
        std::fill_n(to, count, 0.0f);
      } else if (narrowed) {
        job_.engine.store_scaled(sums, results_[r].factor, count, reinterpret_cast<bf16*>(row));
        continue;
      } else {
        scale_row(sums, results_[r].factor, count, to);
      }
      if (!direct) store_row(sums, count, out, rows_[r]);
    }
  }

  void write_rows(const AttentionResults& out, std::int64_t base) const {
    const AttentionStatistics& s = out.statistics;
    float* lse = out.lse.data<float>() + base;
    float* entropy = s.entropy.defined() ? s.entropy.data<float>() + base : nullptr;
    float* top = s.top_weight.defined() ? s.top_weight.data<float>() + base : nullptr;
    std::int32_t* index = s.top_index.defined() ? s.top_index.data<std::int32_t>() + base : nullptr;
    for (std::int64_t r = 0; r < count_; ++r) {
      const Result& result = results_[r];
      const std::int64_t i = rows_[r];
      lse[i] = result.sees ? result.lse : -kInfinity;
      if (entropy != nullptr) entropy[i] = result.sees ? result.entropy : 0;
      if (top != nullptr) top[i] = result.sees ? result.factor : 0;  // the largest weight is 1
      if (index != nullptr) index[i] = result.sees ? static_cast<std::int32_t>(top_[r]) : -1;
    }
  }

  BlockSums block_sums() const {
    BlockSums sums;
    sums.max_logit = scorer_.max_logit();
    float last_visible = 0;
    double one_over_log = 0;  // of how many keys the row sees
    for (std::int64_t r = 0; r < count_; ++r) {
      const Result& result = results_[r];
      if (!result.sees) continue;
      if (scorer_.is_plain()) sums.max_logit = larger(sums.max_logit, result.largest * unit_);
      sums.rows += 1;
      sums.entropy += result.entropy;
      if (visible_[r] != last_visible) {  // mostly the same, or one more than in the row before
        last_visible = visible_[r];
        one_over_log = 1 / std::log(double{last_visible});
      }
      if (visible_[r] > 1) sums.entropy_relative += result.entropy * one_over_log;
      if (result.factor > 0.99f) sums.saturated += 1;
    }
    sums.pairs = moments_.pairs();
    sums.mean = moments_.mean() * unit_;
    sums.deviation = moments_.deviation() * unit_ * unit_;
    return sums;
  }

 private:
  struct Result {
    bool sees = false;
    float largest = 0, lse = 0, factor = 0, entropy = 0;
  };

  struct RowRange {
    std::int64_t begin, end;
  };

  void step_rows(const TileScores& tile, const RowRange& rows) {
    for (std::int64_t first = rows.begin; first < rows.end; first += kSurveyed) {
      const std::int64_t end = std::min(first + kSurveyed, rows.end);
      for (std::int64_t r = first; r < end; ++r) {
        float* row = tile.scores + r * tile.stride;
        scorer_.finish_row(r, row, tile.partial, collect_);
        if (!survey_) shift_[r] = largest_of(row, tile.columns);
      }
      if (survey_) {
        moments_.survey({.scores = tile.scores + first * tile.stride,
                         .stride = tile.stride,
                         .keys = tile.keys,
                         .columns = tile.columns,
                         .partial = tile.partial || job_.problem.bias.defined()},  // may hide, too
                        end - first, {shift_.get() + first, visible_.get() + first});
      }
    }
    if (find_top_) find_tops(tile, rows);
    update_factors(rows);
    if (job_.problem.dropout > 0) {
      weigh_rows<Weighing::dropped>(tile, rows);
    } else if (tile.kept != nullptr) {
      weigh_rows<Weighing::kept>(tile, rows);
    } else if (entropy_) {
      weigh_rows<Weighing::watched>(tile, rows);
    } else {
      weigh_rows<Weighing::plain>(tile, rows);
    }
  }

  static HWY_INLINE double sum_of(const float* lanes) {
    const D d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, lanes)));
  }

  // Columns are whole multiples of 32, and as many maxima as fit are looked for side by side.
  HWY_INLINE float largest_of(const float* row, std::int64_t columns) const {
    constexpr int kTogether = std::min<int>(8, 32 / hn::MaxLanes(D()));
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    V largest[kTogether];
    HWY_UNROLL(8)
    for (int i = 0; i < kTogether; ++i) largest[i] = hn::LoadU(d, row + i * lanes);
    for (std::int64_t j = kTogether * lanes; j < columns; j += kTogether * lanes) {
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) {
        largest[i] = hn::Max(largest[i], hn::LoadU(d, row + j + i * lanes));
      }
    }
    return largest_lane(max_by_halves<kTogether>(largest));
  }

  // Which rows have a larger score than before is anyone's guess: they are listed without a branch,
  // and then looked through.
  HWY_INLINE void find_tops(const TileScores& tile, const RowRange& rows) {
    std::int64_t count = 0;
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      risen_[count] = r;
      count += shift_[r] > maximum_[r] ? 1 : 0;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t r = risen_[i];
      top_[r] = tile.first_key + find(tile.scores + r * tile.stride, tile.columns, shift_[r]);
    }
  }

  // The first column that holds `value`. Without a branch: where it stands is anyone's guess. From
  // the last column to the first, so that what is found later stands before it.
  static std::int64_t find(const float* row, std::int64_t columns, float value) {
    constexpr int kTogether = std::min<int>(4, 32 / hn::MaxLanes(D()));  // columns: multiples of 32
    const D d;
    const hn::RebindToSigned<D> di;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const V wanted = hn::Set(d, value);
    hn::Vec<decltype(di)> first[kTogether];
    HWY_UNROLL(4)
    for (auto& x : first) x = hn::Set(di, static_cast<std::int32_t>(columns));
    for (std::int64_t j = columns - kTogether * lanes; j >= 0; j -= kTogether * lanes) {
      HWY_UNROLL(4)
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t at = j + i * lanes;
        const auto here = hn::RebindMask(di, hn::Eq(hn::LoadU(d, row + at), wanted));
        first[i] = hn::IfThenElse(here, hn::LoadU(di, kColumns.data() + at), first[i]);
      }
    }
    auto least = first[0];
    for (const auto& x : first) least = hn::Min(least, x);
    return hn::GetLane(hn::MinOfLanes(di, least));
  }

  // factor = 2^(old - new) for what has been summed so far; shift = the new maximum, or 0 in a row
  // that has seen nothing, where -inf - -inf would be NaN.
  void update_factors(const RowRange& rows) {
    const D d;
    const V scale = hn::Set(d, to_log2_);
    for (std::int64_t r = rows.begin; r < rows.end; r += lanes_) {
      const V before = hn::LoadU(d, maximum_.get() + r), found = hn::LoadU(d, shift_.get() + r);
      // NaN compares false and is left to the weights: it becomes NaN there, in this row alone.
      const V now = hn::IfThenElse(hn::Gt(found, before), found, before);
      const V safe = or_zero(now);
      hn::StoreU(exp2_fast(d, hn::Mul(hn::Sub(before, safe), scale)), d, factor_.get() + r);
      hn::StoreU(safe, d, shift_.get() + r);
      // sum p (s - maximum) grows by this for every weight summed so far; below `least_` the factor
      // is 0, and nothing of it must become infinite before.
      if (entropy_) {
        hn::StoreU(hn::Max(hn::Set(d, least_), hn::Sub(before, safe)), d, change_.get() + r);
      }
      hn::StoreU(now, d, maximum_.get() + r);
    }
  }

  // A maximum, or 0 where nothing has been seen.
  static HWY_INLINE V or_zero(V maximum) {
    const D d;
    return hn::IfThenZeroElse(hn::Eq(maximum, hn::Set(d, -kInfinity)), maximum);
  }

  // What is done with weights besides summing them: nothing, their entropy, also a copy, and also
  // dropout. The last two find out at run time whether entropy and a copy are asked for.
  enum class Weighing : std::uint8_t { plain, watched, kept, dropped };

  template <Weighing kWeighing>
  void weigh_rows(const TileScores& tile, const RowRange& rows) {
    tile.narrow != nullptr ? weigh_rows<true, kWeighing>(tile, rows)
                           : weigh_rows<false, kWeighing>(tile, rows);
  }
  template <bool kNarrow, Weighing kWeighing>
  HWY_NOINLINE void weigh_rows(const TileScores& tile, const RowRange& rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      if (job_.ahead != nullptr && r % kAskEvery == 0) job_.ahead->ask();
      weigh<kNarrow, kWeighing>(tile, r);
    }
  }

  template <bool kNarrow, Weighing kWeighing>
  HWY_INLINE void weigh(const TileScores& tile, std::int64_t r) {
    constexpr bool kDropped = kWeighing == Weighing::dropped;
    constexpr bool kKept = kWeighing == Weighing::kept;
    const D d;
    float* row = tile.scores + r * tile.stride;
    const V shift = hn::Set(d, shift_[r]), scale = hn::Set(d, to_log2_);
    const V least = hn::Set(d, least_), factor = hn::Set(d, factor_[r]);
    const V total_before = hn::Load(d, total_.get() + r * lanes_);
    V total = hn::Mul(total_before, factor);
    [[maybe_unused]] V weighted[2] = {hn::Zero(d), hn::Zero(d)};
    const bool watched =
        kWeighing == Weighing::watched || (kWeighing != Weighing::plain && entropy_);
    const bool partial = tile.partial || job_.problem.bias.defined();
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t columns = tile.columns;
    if (kDropped) {
      dropout_row(job_.problem, job_.sequence, job_.head, rows_[r], tile.first_key, tile.columns,
                  keep_.get());
    }
    constexpr int kTogether = HWY_TARGET == HWY_NEON ? 8 : kNarrow ? 2 : 1;
    for (std::int64_t j = 0; j < columns; j += kTogether * lanes) {
      V weights[kTogether];
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) {
        weights[i] = hn::Sub(hn::LoadU(d, row + j + i * lanes), shift);
      }
      exp2_scaled<kNarrow ? 4 : 5>(d, scale, least, weights);
      if (watched) add_weighted(row + j, shift, partial, weights, weighted);
      total = hn::Add(total, sum_by_halves<kTogether>(weights));
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t column = j + i * lanes;
        V& p = weights[i];
        if (kKept || (kDropped && tile.kept != nullptr)) {
          hn::StoreU(p, d, tile.kept + r * tile.stride + column);
        }
        if constexpr (kDropped) p = hn::Mul(p, hn::LoadU(d, keep_.get() + column));
        if constexpr (!kNarrow) hn::StoreU(p, d, row + column);
      }
      if constexpr (kNarrow) {
        bf16* to = tile.narrow_at(r, j);
        HWY_UNROLL(4)
        for (int i = 0; i < kTogether; i += 2) {
          if constexpr (kWeightsTurned) {
            store_narrow(weights[i], to + 8 * i);
            store_narrow(weights[i + 1], to + 8 * i + 8);
          } else {
            store_narrow(weights[i], weights[i + 1], to + i * lanes);
          }
        }
      }
    }
    hn::Store(total, d, total_.get() + r * lanes_);
    if (!watched) return;
    float* sum_to = weighted_.get() + r * lanes_;
    const V change = hn::Set(d, change_[r]), added = hn::Add(weighted[0], weighted[1]);
    const V before = hn::MulAdd(change, total_before, hn::Load(d, sum_to));
    hn::Store(hn::MulAdd(before, factor, added), d, sum_to);
  }

  // Adds p (s - shift). Of many at a time the exponents are found again, behind a fence that keeps
  // the compiler from remembering them: so many do not stay in registers.
  template <int kCount>
  static HWY_INLINE void add_weighted(const float* scores, V shift, bool partial,
                                      const V (&weights)[kCount], V (&sums)[2]) {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    if constexpr (kCount > 2) std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!partial) {
      HWY_UNROLL(8)
      for (int i = 0; i < kCount; ++i) {
        const V exponent = hn::Sub(hn::LoadU(d, scores + i * lanes), shift);
        sums[i % 2] = hn::MulAdd(weights[i], exponent, sums[i % 2]);
      }
      return;
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kCount; ++i) {  // -inf times 0 would be NaN
      const V exponent = hn::Sub(hn::LoadU(d, scores + i * lanes), shift);
      const auto hidden = hn::Eq(exponent, hn::Set(d, -kInfinity));
      sums[i % 2] = hn::MulAdd(weights[i], hn::IfThenZeroElse(hidden, exponent), sums[i % 2]);
    }
  }

  void rescale(float* sums, std::int64_t stride) const {
    const std::int64_t columns = round_up(job_.problem.value_size, job_.engine.column_multiple);
    for (std::int64_t r = 0; r < count_; ++r, sums += stride) {
      if (factor_[r] != 1) scale_row(sums, factor_[r], columns, sums);
    }
  }

  // Whole vectors; `to` may be x.
  static HWY_INLINE void scale_row(const float* x, float factor, std::int64_t count, float* to) {
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const V times = hn::Set(d, factor);
    for (std::int64_t i = 0; i < count; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, x + i), times), d, to + i);
    }
  }

  const BlockJob& job_;
  ScoreRows scorer_;
  const std::int64_t* rows_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t lanes_;
  bool collect_, find_top_, entropy_;
  bool survey_;           // moments, or how many keys a row sees
  float unit_, to_log2_;  // from what the tile holds to scores, and to their base-2 logarithm
  float least_;           // below it a weight is 0
  Scratch<float> maximum_, factor_, shift_;  // per row
  Scratch<float> total_, weighted_;          // per row and lane: sums of p and p (s - maximum)
  Scratch<float> change_;                    // per row: the maximum before, less the one now
  Scratch<float> visible_;
  Scratch<std::int64_t> top_, risen_;
  Scratch<float> keep_;
  ScoreMoments moments_;
  Scratch<Result> results_;
};

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
