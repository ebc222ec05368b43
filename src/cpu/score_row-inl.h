// From q . k to the score: scale, softcap, bias, and -inf where the pair is hidden. Used by forward
// and, with the derivative of the softcap, by backward. Per-target code.
#if defined(QKV_CPU_SCORE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_SCORE_ROW_INL_H_
#undef QKV_CPU_SCORE_ROW_INL_H_
#else
#define QKV_CPU_SCORE_ROW_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/attention_mask.h"
#include "cpu/attention_plan.h"
#include "cpu/exp-inl.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class ScoreRows {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  // `mask` has the rows of the block; `diagonal` has its head.
  ScoreRows(const AttentionProblem& problem, std::int64_t sequence, const BlockMask& mask,
            const DiagonalBias& diagonal)
      : problem_(problem),
        sequence_(problem.sequences[sequence]),
        mask_(mask),
        diagonal_(diagonal),
        plain_(cpu::is_plain(problem)),
        lanes_(static_cast<std::int64_t>(hn::Lanes(D()))) {}

  void set_block(std::int64_t head, const std::int64_t* rows) {
    head_ = head;
    rows_ = rows;
    std::fill_n(max_logit_, hn::MaxLanes(D()), -kInfinity);
  }
  void set_tile(std::int64_t first_key, std::int64_t keys, std::int64_t columns) {
    first_ = first_key;
    keys_ = keys;
    columns_ = columns;
    if (static_cast<std::int64_t>(bytes_.size()) < columns) {
      bytes_.resize(static_cast<std::size_t>(columns));
      bias_ = Scratch<float>(columns);
    }
  }

  // Nothing but a positive scale: rows hold q . k and the scale is left to the exponential.
  bool is_plain() const { return plain_; }
  // A row holds scores divided by this.
  float unit() const { return plain_ ? problem_.scale : 1.0f; }
  // The largest visible a_ij so far; plain rows do not track it, their maximum is it.
  float max_logit() const {
    return std::accumulate(max_logit_, max_logit_ + lanes_, -kInfinity, larger);
  }

  // Whether the pair (r, column j of the tile) is visible: for the rare case that must know.
  bool sees(std::int64_t r, std::int64_t j) {
    mark_visible(r);
    const auto column = static_cast<float>(j);
    const bool by_mask = use_bytes_ ? bytes_[j] != 0 : column >= begin_ && column < end_;
    const float* bias = by_mask ? bias_row(r) : nullptr;
    return by_mask && (bias == nullptr || bias[j] != -kInfinity);
  }

  // Row r of the tile, in place. `slope` (or null) receives d c / d a of the softcap.
  void finish_row(std::int64_t r, float* row, bool partial, bool track_max,
                  float* slope = nullptr) {
    if (partial) mark_visible(r);
    if (!plain_) {
      transform(r, row, partial, track_max, slope);
    } else if (partial) {
      hide(row);
    }
  }

 private:
  void mark_visible(std::int64_t r) {
    use_bytes_ = mask_.needs_bytes();
    if (use_bytes_) {
      mask_.write_bytes(r, first_, first_ + keys_, bytes_.data());
      std::fill(bytes_.begin() + keys_, bytes_.begin() + columns_, std::uint8_t{0});
    } else {
      const KeyInterval& seen = mask_.interval(r);
      begin_ = static_cast<float>(std::clamp<std::int64_t>(seen.begin - first_, 0, columns_));
      end_ = static_cast<float>(std::clamp<std::int64_t>(seen.end - first_, 0, keys_));
    }
  }

  // Which of the columns [j, j + lanes) are visible.
  HWY_INLINE hn::Mask<D> visible(std::int64_t j) const {
    const D d;
    if (use_bytes_) {
      const hn::Rebind<std::uint8_t, D> d8;
      const hn::RebindToSigned<D> di;
      const auto wide = hn::PromoteTo(di, hn::LoadU(d8, bytes_.data() + j));
      return hn::RebindMask(d, hn::Gt(wide, hn::Zero(di)));
    }
    const V column = hn::Iota(d, static_cast<float>(j));
    return hn::And(hn::Ge(column, hn::Set(d, begin_)), hn::Lt(column, hn::Set(d, end_)));
  }

  void hide(float* row) const {
    const D d;
    for (std::int64_t j = 0; j < columns_; j += lanes_) {
      const V s = hn::LoadU(d, row + j);
      hn::StoreU(hn::IfThenElse(visible(j), s, hn::Set(d, -kInfinity)), d, row + j);
    }
  }

  const float* bias_row(std::int64_t r) {
    if (diagonal_.defined()) return diagonal_.at(rows_[r], first_);
    if (!problem_.bias.defined()) return nullptr;
    const Tensor& bias = problem_.bias;
    Rows source = rows_of(bias, sequence_.q_batch, head_, rows_[r]);
    const auto item = static_cast<std::int64_t>(size_of(bias.dtype()));
    source.data += first_ * source.step * item;
    load_rows(source, 1, keys_, bias_.get(), keys_);
    std::fill(bias_.get() + keys_, bias_.get() + columns_, 0.0f);
    return bias_.get();
  }

  void transform(std::int64_t r, float* row, bool partial, bool track_max, float* slope) {
    const D d;
    const float* bias = bias_row(r);
    const V scale = hn::Set(d, problem_.scale), hidden = hn::Set(d, -kInfinity);
    const V cap = hn::Set(d, problem_.softcap), one = hn::Set(d, 1.0f);
    const V inverse_cap = hn::Set(d, problem_.softcap > 0 ? 1 / problem_.softcap : 0);
    V largest = hn::Load(d, max_logit_);
    for (std::int64_t j = 0; j < columns_; j += lanes_) {
      const V a = hn::Mul(hn::LoadU(d, row + j), scale);
      auto seen = partial ? visible(j) : hn::Eq(one, one);
      V s = a;
      if (problem_.softcap > 0) {
        const V t = tanh_fast(d, hn::Mul(s, inverse_cap));
        s = hn::Mul(cap, t);
        if (slope != nullptr) hn::StoreU(hn::NegMulAdd(t, t, one), d, slope + j);
      }
      if (bias != nullptr) {
        const V add = hn::LoadU(d, bias + j);
        seen = hn::AndNot(hn::Eq(add, hidden), seen);  // -inf hides, even a NaN
        s = hn::Add(s, add);
      }
      if (track_max) {  // as `larger`, in every lane
        const V logit = hn::IfThenElse(seen, a, hidden);
        const auto stays = hn::Or(hn::Le(logit, largest), hn::IsNaN(largest));
        largest = hn::IfThenElse(stays, largest, logit);
      }
      hn::StoreU(hn::IfThenElse(seen, s, hidden), d, row + j);
    }
    hn::Store(largest, d, max_logit_);
  }

  const AttentionProblem& problem_;
  const AttentionSequence& sequence_;
  const BlockMask& mask_;
  const DiagonalBias& diagonal_;
  bool plain_;
  std::int64_t lanes_;
  std::int64_t head_ = 0;
  const std::int64_t* rows_ = nullptr;
  std::int64_t first_ = 0, keys_ = 0, columns_ = 0;
  bool use_bytes_ = false;
  float begin_ = 0, end_ = 0;  // visible columns of the row at hand
  std::vector<std::uint8_t> bytes_;
  Scratch<float> bias_;
  HWY_ALIGN float max_logit_[hn::MaxLanes(D())];
};

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
