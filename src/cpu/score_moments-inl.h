// Mean and variance of scores, summed where the largest of each row is looked for. Per-target code.
#if defined(QKV_CPU_SCORE_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_SCORE_MOMENTS_INL_H_
#undef QKV_CPU_SCORE_MOMENTS_INL_H_
#else
#define QKV_CPU_SCORE_MOMENTS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Neighbouring rows of a tile of scores.
struct ScoredRows {
  const float* scores;
  std::int64_t stride;
  std::int64_t keys, columns;  // columns >= keys, a multiple of 32
  bool partial;                // some pair is hidden: -inf
};

// What is told of each row.
struct RowsSurveyed {
  float* largest;  // score
  float* visible;  // how many it sees are added
};

class ScoreMoments {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Sums side by side, of several rows where these have few vectors: a chain would be waited for.
  static constexpr int kChains = 4;
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using Sums = V[kChains];

 public:
  // Rows at a time: a lane's scores of so many are summed in f32.
  static constexpr std::int64_t kMostRows = HWY_LANES(float) >= 4 ? 4 : 1;

  void begin() {
    has_pivot_ = false;
    pivot_ = 0;
    clear();
  }

  // At most kMostRows.
  HWY_INLINE void survey(const ScoredRows& rows, std::int64_t count, const RowsSurveyed& to) {
    survey_relative(rows, count, to);
    if (has_pivot_ || !choose_pivot()) return;
    std::fill_n(to.visible, count, 0.0f);  // nothing was seen before
    clear();
    survey_relative(rows, count, to);
  }

  double pairs() const { return pairs_; }
  double mean() const { return pairs_ > 0 ? pivot_ + sum_lanes(moment1_) / pairs_ : 0; }
  // The sum of squares of what scores differ from the mean.
  double deviation() const {
    if (pairs_ == 0) return 0;
    const double first = sum_lanes(moment1_), second = sum_lanes(moment2_);
    return std::max(second - first * first / pairs_, 0.0);
  }

 private:
  static double sum_lanes(const double* lanes) {
    double sum = 0;
    for (std::size_t i = 0; i < hn::Lanes(D()); ++i) sum += lanes[i];
    return sum;
  }

  void clear() {
    pairs_ = 0;
    std::fill_n(moment1_, hn::MaxLanes(D()), 0.0);
    std::fill_n(moment2_, hn::MaxLanes(D()), 0.0);
  }

  // Where a common offset would eat the variance, scores are summed relative to the mean of the
  // first that are seen; mostly it is no larger than they differ. Whether these, which have been
  // summed, have to be once more.
  bool choose_pivot() {
    const double sum = sum_lanes(moment1_), squares = sum_lanes(moment2_);
    if (pairs_ == 0 || !std::isfinite(sum)) return false;
    has_pivot_ = true;
    const double mean = sum / pairs_;
    const bool is_small = std::isfinite(squares) && mean * mean * pairs_ <= squares / 2;
    pivot_ = is_small ? 0.0f : static_cast<float>(mean);
    return pivot_ != 0;
  }

  void survey_relative(const ScoredRows& rows, std::int64_t count, const RowsSurveyed& to) {
    if (pivot_ == 0) {
      rows.partial ? survey_rows<true, false>(rows, count, to)
                   : survey_rows<false, false>(rows, count, to);
    } else {
      rows.partial ? survey_rows<true, true>(rows, count, to)
                   : survey_rows<false, true>(rows, count, to);
    }
  }

  template <bool kPartial, bool kCentred>
  HWY_NOINLINE void survey_rows(const ScoredRows& rows, std::int64_t count,
                                const RowsSurveyed& to) {
    constexpr int kRows = kChains / std::min<int>(kChains, 32 / hn::MaxLanes(D()));
    const D d;
    Sums sum, squares;
    HWY_UNROLL(4)
    for (int i = 0; i < kChains; ++i) sum[i] = squares[i] = hn::Zero(d);
    std::int64_t r = 0;
    for (; r + kRows <= count; r += kRows) {
      survey_some<kPartial, kCentred, kRows>(rows, r, to, sum, squares);
    }
    for (; r < count; ++r) survey_some<kPartial, kCentred, 1>(rows, r, to, sum, squares);
    add_moments(sum_by_halves<kChains>(sum), moment1_);
    add_moments(sum_by_halves<kChains>(squares), moment2_);
  }

  template <bool kPartial, bool kCentred, int kRows>
  HWY_INLINE void survey_some(const ScoredRows& rows, std::int64_t first, const RowsSurveyed& to,
                              Sums& sum, Sums& squares) {
    constexpr int kTogether = std::min<int>(kChains, 32 / hn::MaxLanes(D()));
    const D d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const V pivot = hn::Set(d, pivot_);
    const float* const scores = rows.scores + first * rows.stride;
    V largest[kRows][kTogether];
    [[maybe_unused]] std::size_t hidden_count[kRows] = {};
    HWY_UNROLL(4)
    for (int k = 0; k < kRows; ++k) {
      HWY_UNROLL(4)
      for (int i = 0; i < kTogether; ++i) {
        largest[k][i] = hn::LoadU(d, scores + k * rows.stride + i * lanes);
      }
    }
    for (std::int64_t j = 0; j < rows.columns; j += kTogether * lanes) {
      HWY_UNROLL(4)
      for (int k = 0; k < kRows; ++k) {
        HWY_UNROLL(4)
        for (int i = 0; i < kTogether; ++i) {
          const V s = hn::LoadU(d, scores + k * rows.stride + j + i * lanes);
          largest[k][i] = hn::Max(largest[k][i], s);
          V centred = kCentred ? hn::Sub(s, pivot) : s;
          if constexpr (kPartial) {  // where -inf would make NaN of both sums
            const auto hidden = hn::Eq(s, hn::Set(d, -kInfinity));
            hidden_count[k] += hn::CountTrue(d, hidden);
            centred = hn::IfThenZeroElse(hidden, centred);
          }
          const int chain = k * kTogether + i;
          sum[chain] = hn::Add(sum[chain], centred);
          squares[chain] = hn::MulAdd(centred, centred, squares[chain]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t seen =
          kPartial ? rows.columns - static_cast<std::int64_t>(hidden_count[k]) : rows.keys;
      to.visible[first + k] += static_cast<float>(seen);
      pairs_ += static_cast<double>(seen);
      to.largest[first + k] = largest_lane(max_by_halves<kTogether>(largest[k]));
    }
  }

  // Long sums are kept in f64, lane by lane: the variance of a head adds up millions of pairs. A
  // few rows are summed in f32 before.
  static HWY_INLINE void add_moments(V sums, double* to) {
    const D d;
    HWY_ALIGN float lane[hn::MaxLanes(D())];
    hn::Store(sums, d, lane);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) to[i] += lane[i];
  }

  bool has_pivot_ = false;
  float pivot_ = 0;
  double pairs_ = 0;
  HWY_ALIGN double moment1_[hn::MaxLanes(D())] = {};
  HWY_ALIGN double moment2_[hn::MaxLanes(D())] = {};
};

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
