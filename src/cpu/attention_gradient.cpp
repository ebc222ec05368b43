#include "cpu/attention_gradient.h"

#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_gradient.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/gemm_panels-inl.h"
#include "cpu/gemm_tile-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/score_row-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of f32 padded to whole vectors.
struct Panel {
  struct Element {
    std::int64_t row, column;
    float value;
  };

  Scratch<float> data;
  std::int64_t stride = 0;
  std::vector<Element> non_finite;  // taken out by clean(): 0 in data

  Panel() = default;
  Panel(std::int64_t rows, std::int64_t columns)
      : data(rows * round_up(columns, 16)), stride(round_up(columns, 16)) {}
  void load(const Rows& rows, std::int64_t count, std::int64_t columns) {
    load_rows(rows, count, columns, data.get(), stride);
    non_finite.clear();
  }
  // NaN and infinities out: a pair that is hidden has p = ds = 0, and 0 times them must not happen.
  void clean(std::int64_t rows) {
    if (all_finite(data.get(), rows * stride)) return;
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      if (std::isfinite(data[i])) continue;
      non_finite.push_back({i / stride, i % stride, data[i]});
      data[i] = 0;
    }
  }
  Left left() const { return {data.get(), stride, 1}; }
};

// A right operand of products with p and ds, and what was taken out of it.
struct RightRows {
  Right rows;
  const std::vector<Panel::Element>& non_finite;
};

// Rows as f32: where they lie, or a copy.
class PlainRows {
 public:
  PlainRows(std::int64_t rows, std::int64_t columns) : columns_(columns), most_(rows) {}

  // Rows of whole vectors need no copy, unless they lie far apart: their cache lines would fight
  // for the same few sets.
  void load(const Rows& from, std::int64_t count) {
    const bool whole = from.step == 1 && columns_ % 16 == 0;
    if (from.dtype == DType::f32 && whole && from.stride <= 2 * columns_) {
      data_ = reinterpret_cast<const float*>(from.data);
      stride_ = from.stride;
      return;
    }
    if (copy_.data.get() == nullptr) copy_ = Panel(most_, columns_);
    copy_.load(from, count, columns_);
    data_ = copy_.data.get();
    stride_ = copy_.stride;
  }
  const float* row(std::int64_t r) const { return data_ + r * stride_; }
  std::int64_t stride() const { return stride_; }

 private:
  std::int64_t columns_, most_;
  const float* data_ = nullptr;  // of a tensor, or of the copy
  std::int64_t stride_ = 0;
  Panel copy_;
};

// Rows as a right operand, without NaN and infinities.
class CleanRows {
 public:
  CleanRows(std::int64_t rows, std::int64_t columns)
      : plain_(rows, columns), columns_(columns), most_(rows) {}

  void load(const Rows& from, std::int64_t count) {
    plain_.load(from, count);
    finite_ = true;
    for (std::int64_t r = 0; r < count && finite_; ++r) {
      finite_ = all_finite(plain_.row(r), columns_);
    }
    clean_.non_finite.clear();
    if (finite_) return;
    if (clean_.data.get() == nullptr) clean_ = Panel(most_, columns_);
    clean_.load(from, count, columns_);
    clean_.clean(count);
  }
  const PlainRows& plain() const { return plain_; }  // NaN and infinities included
  RightRows right() const {
    return {
        finite_ ? Right{plain_.row(0), plain_.stride()} : Right{clean_.data.get(), clean_.stride},
        clean_.non_finite};
  }

 private:
  PlainRows plain_;
  std::int64_t columns_, most_;
  Panel clean_;  // where some are not finite
  bool finite_ = true;
};

// Rows of a block as a left operand, turned where products want that, and as a right one.
class BlockRows {
 public:
  BlockRows(std::int64_t rows, std::int64_t columns)
      : rows_(rows, columns), columns_(columns), turned_(kTurns ? rows * columns : 0) {}

  void load(const Rows& from, std::int64_t count) {
    rows_.load(from, count);
    const PlainRows& plain = rows_.plain();
    for (std::int64_t r = 0; kTurns && r < count; r += kRowsTogether) {
      transpose_block(plain.row(r), plain.stride(),
                      std::min<std::int64_t>(kRowsTogether, count - r), columns_,
                      turned_.get() + r * columns_, kRowsTogether);
    }
  }
  Left left() const {
    const PlainRows& plain = rows_.plain();
    return kTurns ? Left{turned_.get(), columns_, kRowsTogether}
                  : Left{plain.row(0), plain.stride(), 1};
  }
  RightRows right() const { return rows_.right(); }

 private:
  static constexpr bool kTurns = kRowsTogether > 1;

  CleanRows rows_;
  std::int64_t columns_;
  Scratch<float> turned_;
};

// One tile of keys: K as rows, K and V as columns, and the sums of dK and dV.
struct KeyTile {
  std::int64_t first = 0, keys = 0;
  CleanRows k;
  Panel dk, dv;
  Scratch<float> k_columns, v_columns;

  KeyTile(const AttentionProblem& problem, std::int64_t sequence, std::int64_t key_head,
          std::int64_t first_key, std::int64_t count)
      : first(first_key),
        keys(count),
        k(kGradientKeys, problem.head_size),
        k_columns(problem.head_size * kGradientKeys),
        v_columns(problem.value_size * kGradientKeys) {
    const AttentionSequence& s = problem.sequences[sequence];
    k.load(rows_of(problem.k, s.k_batch, key_head, s.k_start + first), keys);
    PlainRows v(kGradientKeys, problem.value_size);
    v.load(rows_of(problem.v, s.k_batch, key_head, s.k_start + first), keys);
    // The columns keep what is not finite: scores must show it.
    pack(k.plain(), problem.head_size, k_columns.get());
    pack(v, problem.value_size, v_columns.get());
  }
  void pack(const PlainRows& rows, std::int64_t size, float* columns) const {
    pack_columns(rows.row(0), rows.stride(), keys, kGradientKeys, size, columns);
  }
  void begin_sums(const AttentionProblem& problem) {
    dk = Panel(kGradientKeys, problem.head_size);
    dv = Panel(kGradientKeys, problem.value_size);
    std::fill_n(dk.data.get(), kGradientKeys * dk.stride, 0.0f);
    std::fill_n(dv.data.get(), kGradientKeys * dv.stride, 0.0f);
  }
};

// A block of query rows with what backward needs of each row.
class RowBlock {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;

 public:
  RowBlock(const GradientInputs& in, std::int64_t sequence, BlockMask& mask,
           const DiagonalBias& diagonal)
      : in_(in),
        problem_(in.problem),
        sequence_(sequence),
        mask_(mask),
        scorer_(in.problem, sequence, mask, diagonal),
        q_(kGradientRows, in.problem.head_size),
        dout_(kGradientRows, in.problem.value_size),
        weights_(kGradientRows, kGradientKeys),
        ds_(kGradientRows, kGradientKeys),
        dq_(kGradientRows, in.problem.head_size),
        slope_(in.problem.softcap > 0 ? kGradientKeys : 0),
        keep_(in.problem.dropout > 0 ? kGradientKeys : 0),
        rows_(static_cast<std::size_t>(kGradientRows)) {}

  // Chooses the rows, and tells the keys outside of which they see none; then they are loaded.
  KeyInterval choose(std::int64_t head, std::int64_t first_row, std::int64_t count) {
    head_ = head;
    count_ = count;
    std::iota(rows_.begin(), rows_.end(), first_row);
    mask_.set_rows(head, rows_.data(), count);
    scorer_.set_block(head, rows_.data());
    return mask_.reach();
  }
  void load() {
    const AttentionSequence& s = problem_.sequences[sequence_];
    const std::int64_t row = s.q_start + rows_[0];
    q_.load(rows_of(problem_.q, s.q_batch, head_, row), count_);
    dout_.load(rows_of(in_.tensors.dout, s.q_batch, head_, row), count_);
    lse_base_ = lse_index(problem_, in_.tensors, sequence_, head_);
  }
  void begin_sums() { std::fill_n(dq_.data.get(), count_ * dq_.stride, 0.0f); }

  // Recomputes the weights of the tile and from them ds; false when the mask hides all of it.
  bool differentiate(const KeyTile& tile) {
    const TileKind kind = mask_.classify(tile.first, tile.first + tile.keys);
    if (kind == TileKind::hidden) return false;
    const std::int64_t columns = std::min(kGradientKeys, round_up(tile.keys, 16));
    partial_ = kind == TileKind::partial || columns != tile.keys || problem_.bias.defined();
    multiply(q_.left(), packed_columns(tile.k_columns.get(), kGradientKeys, problem_.head_size),
             {weights_.data.get(), weights_.stride, false}, {count_, columns, problem_.head_size});
    multiply(dout_.left(), packed_columns(tile.v_columns.get(), kGradientKeys, problem_.value_size),
             {ds_.data.get(), ds_.stride, false}, {count_, columns, problem_.value_size});
    scorer_.set_tile(tile.first, tile.keys, columns);
    for (std::int64_t r = 0; r < count_; ++r) {
      scorer_.finish_row(r, weights(r), partial_, false, slope_.get());
      if (partial_) {
        differentiate_row<true>(r, tile.first, columns);
      } else {
        differentiate_row<false>(r, tile.first, columns);
      }
    }
    return true;
  }

  const float* ds(std::int64_t r) const { return ds_.data.get() + r * ds_.stride; }
  std::int64_t row(std::int64_t r) const { return rows_[r]; }
  std::int64_t count() const { return count_; }
  std::int64_t head() const { return head_; }
  const Panel& dq() const { return dq_; }

  // dv += p^T dout, dk += da^T q, dq += da k, after the softcap's slope has made da of ds.
  void add_products(KeyTile& tile) {
    const std::int64_t d = problem_.head_size, dv = problem_.value_size;
    add(weights_, true, dout_.right(), tile.dv, {tile.keys, dv, count_});
    add(ds_, true, q_.right(), tile.dk, {tile.keys, d, count_});
    add(ds_, false, tile.k.right(), dq_, {count_, d, tile.keys});
  }
  void apply_softcap_slope(std::int64_t columns);

 private:
  float* weights(std::int64_t r) { return weights_.data.get() + r * weights_.stride; }

  // C += A B, or A^T B. What is not finite in B is added after, for the pairs that see it.
  void add(const Panel& a, bool transposed, const RightRows& b, const Panel& c,
           const Extents& size) {
    const Left left = transposed ? Left{a.data.get(), 1, a.stride} : a.left();
    multiply(left, b.rows, {c.data.get(), c.stride, true}, size);
    for (const Panel::Element& x : b.non_finite) {
      for (std::int64_t i = 0; i < size.m; ++i) {
        const std::int64_t query = transposed ? x.row : i, key = transposed ? i : x.row;
        if (!scorer_.sees(query, key)) continue;
        c.data[i * c.stride + x.column] += left.data[i * left.row + x.row * left.step] * x.value;
      }
    }
  }

  template <bool kPartial>
  void differentiate_row(std::int64_t r, std::int64_t first_key, std::int64_t columns) {
    const D d;
    const std::int64_t at = lse_base_ + rows_[r];
    const AttentionBackward& tensors = in_.tensors;
    float subtract = in_.row_products[at];
    if (tensors.dlse.defined()) subtract -= tensors.dlse.data<float>()[at];
    const bool has_entropy = tensors.dentropy.defined();
    const float dentropy = has_entropy ? tensors.dentropy.data<float>()[at] : 0;
    const float mean_score =
        has_entropy ? tensors.lse.data<float>()[at] - tensors.entropy.data<float>()[at] : 0;
    const bool has_dropout = problem_.dropout > 0;
    if (has_dropout) {
      dropout_row(problem_, sequence_, head_, rows_[r], first_key, columns, keep_.get());
    }
    const float exponent = scorer_.unit() * std::numbers::log2e_v<float>;
    const V unit = hn::Set(d, scorer_.unit());
    const V to_log2 = hn::Set(d, exponent), least = hn::Set(d, least_exponent(exponent));
    const V shift = hn::Set(d, in_.shifts[at]), factor = hn::Set(d, in_.factors[at]);
    const V minus = hn::Set(d, subtract);
    float* p_row = weights(r);
    float* ds_row = ds_.data.get() + r * ds_.stride;
    // Columns are whole multiples of 16. Arm finds too little to do in one vector after the other.
    constexpr int kTogether = HWY_TARGET == HWY_NEON ? 4 : 1;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t j = 0; j < columns; j += kTogether * lanes) {
      V weights[kTogether];
      HWY_UNROLL(4)
      for (int i = 0; i < kTogether; ++i) {
        // s <= lse but for rounding; the bound keeps a wrong lse from overflowing.
        const V above = hn::Sub(hn::LoadU(d, p_row + j + i * lanes), shift);
        weights[i] = min_keeping_nan(hn::Zero(d), above);
      }
      exp2_scaled<5>(d, to_log2, least, weights);
      HWY_UNROLL(4)
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t column = j + i * lanes;
        const V raw = hn::LoadU(d, p_row + column);
        const auto visible = [&](V x) HWY_ATTR {  // of hidden pairs 0
          return kPartial ? hn::IfThenZeroElse(hn::Eq(raw, hn::Set(d, -kInfinity)), x) : x;
        };
        V p = visible(hn::Mul(weights[i], factor));
        V change = hn::LoadU(d, ds_row + column);
        if (has_dropout) change = hn::Mul(change, hn::LoadU(d, keep_.get() + column));
        change = hn::Sub(change, minus);
        if (has_entropy) {
          change = hn::NegMulAdd(hn::Set(d, dentropy),
                                 hn::Sub(hn::Mul(raw, unit), hn::Set(d, mean_score)), change);
        }
        hn::StoreU(visible(hn::Mul(p, change)), d, ds_row + column);
        if (has_dropout) p = hn::Mul(p, hn::LoadU(d, keep_.get() + column));
        hn::StoreU(p, d, p_row + column);
      }
    }
    if (problem_.softcap > 0) keep_slope(r, columns);
  }

  void keep_slope(std::int64_t r, std::int64_t columns) {
    if (slopes_.data.get() == nullptr) slopes_ = Panel(kGradientRows, kGradientKeys);
    std::copy_n(slope_.get(), columns, slopes_.data.get() + r * slopes_.stride);
  }

  const GradientInputs& in_;
  const AttentionProblem& problem_;
  std::int64_t sequence_;
  BlockMask& mask_;
  ScoreRows scorer_;
  BlockRows q_, dout_;
  Panel weights_, ds_, dq_, slopes_;
  Scratch<float> slope_, keep_;
  std::vector<std::int64_t> rows_;
  std::int64_t head_ = 0, count_ = 0, lse_base_ = 0;
  bool partial_ = false;
};

// From ds = d loss / d s to da, before the scale: through c = softcap * tanh(a / softcap).
void RowBlock::apply_softcap_slope(std::int64_t columns) {
  if (problem_.softcap == 0) return;
  for (std::int64_t r = 0; r < count_; ++r) {
    float* ds_row = ds_.data.get() + r * ds_.stride;
    const float* slope = slopes_.data.get() + r * slopes_.stride;
    for (std::int64_t j = 0; j < columns; ++j) ds_row[j] *= ds_row[j] == 0 ? 0 : slope[j];
  }
}

// Rows of a chunk's part of a gradient, from `row` on.
Rows part_rows(float* part, std::int64_t row, std::int64_t size) {
  return {reinterpret_cast<std::byte*>(part + row * size), DType::f32, size, 1};
}

void store_panel(const Panel& panel, std::int64_t rows, std::int64_t columns, float scale,
                 const Rows& to) {
  const bool direct = to.dtype == DType::f32 && to.step == 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = panel.data.get() + r * panel.stride;
    float* scaled = direct ? reinterpret_cast<float*>(to.row(r)) : row;
    for (std::int64_t i = 0; i < columns; ++i) scaled[i] = row[i] * scale;
    if (!direct) store_row(row, columns, to, r);
  }
}

// The tiles of a chunk: each is made when rows first reach it, and gone when no later row can, so
// that behind a window few are there at a time.
class ChunkTiles {
 public:
  ChunkTiles(const GradientInputs& in, const GradientChunk& chunk)
      : in_(in),
        problem_(in.problem),
        chunk_(chunk),
        tiles_(static_cast<std::size_t>((chunk.keys + kGradientKeys - 1) / kGradientKeys)) {}

  // Which of the tiles hold keys of `reach`.
  KeyInterval within(const KeyInterval& reach) const {
    const auto count = static_cast<std::int64_t>(tiles_.size());
    const std::int64_t begin = std::max<std::int64_t>(reach.begin - chunk_.first_key, 0);
    const std::int64_t end = std::max<std::int64_t>(reach.end - chunk_.first_key, 0);
    return {std::min(begin / kGradientKeys, count),
            std::min((end + kGradientKeys - 1) / kGradientKeys, count)};
  }
  KeyTile& operator[](std::int64_t i) {
    std::unique_ptr<KeyTile>& tile = tiles_[static_cast<std::size_t>(i)];
    if (tile == nullptr) {
      const std::int64_t first = i * kGradientKeys;
      tile = std::make_unique<KeyTile>(problem_, chunk_.sequence, chunk_.key_head,
                                       chunk_.first_key + first,
                                       std::min(kGradientKeys, chunk_.keys - first));
      tile->begin_sums(problem_);
    }
    return *tile;
  }
  // The tiles before `end` have all their rows: their gradients are stored.
  void finish(std::int64_t end) {
    for (; finished_ < end; ++finished_) {
      store((*this)[finished_]);
      tiles_[static_cast<std::size_t>(finished_)].reset();
    }
  }
  void finish() { finish(static_cast<std::int64_t>(tiles_.size())); }

 private:
  void store(const KeyTile& tile) const {
    const std::int64_t row = tile.first - chunk_.first_key;
    const bool is_part = chunk_.dk != nullptr;
    const AttentionSequence& s = problem_.sequences[chunk_.sequence];
    const auto of = [&](const Tensor& x) {
      return rows_of(x, s.k_batch, chunk_.key_head, s.k_start + tile.first);
    };
    store_panel(tile.dk, tile.keys, problem_.head_size, is_part ? 1 : problem_.scale,
                is_part ? part_rows(chunk_.dk, row, problem_.head_size) : of(in_.tensors.dk));
    store_panel(tile.dv, tile.keys, problem_.value_size, 1,
                is_part ? part_rows(chunk_.dv, row, problem_.value_size) : of(in_.tensors.dv));
  }

  const GradientInputs& in_;
  const AttentionProblem& problem_;
  const GradientChunk& chunk_;
  std::vector<std::unique_ptr<KeyTile>> tiles_;
  std::int64_t finished_ = 0;
};

// dq of the rows of a block, to the chunk's part of it or, if it has none, to the gradient itself.
void store_queries(const GradientInputs& in, const GradientChunk& chunk, const RowBlock& block) {
  const AttentionProblem& problem = in.problem;
  const AttentionSequence& s = problem.sequences[chunk.sequence];
  const std::int64_t size = problem.head_size, row = block.row(0);
  const std::int64_t g = block.head() - chunk.key_head * problem.group();
  const bool is_part = chunk.dq != nullptr;
  store_panel(block.dq(), block.count(), size, is_part ? 1 : problem.scale,
              is_part ? part_rows(chunk.dq, g * chunk.rows + row - chunk.first_row, size)
                      : rows_of(in.tensors.dq, s.q_batch, block.head(), s.q_start + row));
}

void run_gradient_chunk_target(const GradientInputs& in, const GradientChunk& chunk) {
  const AttentionProblem& problem = in.problem;
  ChunkTiles tiles(in, chunk);
  BlockMask mask(problem, chunk.sequence);
  DiagonalBias diagonal(problem, chunk.sequence, kGradientKeys);
  RowBlock block(in, chunk.sequence, mask, diagonal);
  for (std::int64_t g = 0; g < problem.group(); ++g) {
    const std::int64_t head = chunk.key_head * problem.group() + g;
    diagonal.set_head(head);
    double* by_diagonal =
        chunk.diagonals != nullptr ? chunk.diagonals + g * diagonal.diagonals() : nullptr;
    // Without global positions and masks of pairs, what rows see begins later from row to row.
    const bool passes = g + 1 == problem.group() && !mask.needs_bytes();
    for (std::int64_t row = 0; row < chunk.rows; row += kGradientRows) {
      const std::int64_t count = std::min(kGradientRows, chunk.rows - row);
      const KeyInterval reach = block.choose(head, chunk.first_row + row, count);
      const KeyInterval seen = tiles.within(reach);
      const bool sees = reach.begin < reach.end;
      if (passes && sees) tiles.finish(seen.begin);
      block.begin_sums();
      if (sees && seen.begin < seen.end) block.load();
      for (std::int64_t i = seen.begin; sees && i < seen.end; ++i) {
        KeyTile& tile = tiles[i];
        if (!block.differentiate(tile)) continue;
        for (std::int64_t r = 0; r < block.count() && by_diagonal != nullptr; ++r) {
          double* to = by_diagonal + diagonal.index(block.row(r), tile.first);
          for (std::int64_t j = 0; j < tile.keys; ++j) to[j] += block.ds(r)[j];
        }
        block.apply_softcap_slope(tile.keys);
        block.add_products(tile);
      }
      store_queries(in, chunk, block);
    }
  }
  tiles.finish();
}

void add_bias_gradient_target(const GradientInputs& in, const BiasTile& tile, BlockMask& mask) {
  const AttentionProblem& problem = in.problem;
  DiagonalBias none(problem, tile.sequence, kGradientKeys);
  RowBlock block(in, tile.sequence, mask, none);
  block.choose(tile.head, tile.first_row, tile.rows);
  block.load();
  const KeyTile keys(problem, tile.sequence, tile.head / problem.group(), tile.first_key,
                     tile.keys);
  if (!block.differentiate(keys)) return;
  for (std::int64_t r = 0; r < block.count(); ++r) {
    double* to = tile.sums + r * tile.row_step;
    for (std::int64_t j = 0; j < tile.keys; ++j) to[j * tile.key_step] += block.ds(r)[j];
  }
}

void row_products_target(const AttentionProblem& problem, const AttentionBackward& tensors,
                         std::int64_t sequence, std::int64_t head, float* products) {
  const AttentionSequence& s = problem.sequences[sequence];
  const std::int64_t size = problem.value_size;
  const Rows out = rows_of(tensors.out, s.q_batch, head, s.q_start);
  const Rows dout = rows_of(tensors.dout, s.q_batch, head, s.q_start);
  // Summed in the order in which the tile product sums dout . v: in a row that sees one key, out is
  // v, and dp - r is 0 exactly. Eight rows at once hide the latency of their chains.
  constexpr std::int64_t kAtOnce = 8;
  const Scratch<float> a(kAtOnce * size), b(kAtOnce * size);
  float* to = products + lse_index(problem, tensors, sequence, head);
  const hn::CappedTag<float, 1> d;
  for (std::int64_t i = 0; i < s.q_rows; i += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, s.q_rows - i);
    load_rows(out.from(i), count, size, a.get(), size);
    load_rows(dout.from(i), count, size, b.get(), size);
    hn::Vec<decltype(d)> sum[kAtOnce];
    for (auto& x : sum) x = hn::Zero(d);
    for (std::int64_t j = 0; j < size; ++j) {
      HWY_UNROLL(8)
      for (std::int64_t r = 0; r < kAtOnce; ++r) {
        sum[r] = hn::MulAdd(hn::LoadU(d, b.get() + r * size + j),
                            hn::LoadU(d, a.get() + r * size + j), sum[r]);
      }
    }
    for (std::int64_t r = 0; r < count; ++r) to[i + r] = hn::GetLane(sum[r]);
  }
}

void store_gradient_target(std::span<const GradientPart> parts, const StoredGradient& gradient,
                           const Rows& to) {
  const std::int64_t columns = gradient.columns;
  const Scratch<float> sum(columns);
  for (std::int64_t r = 0; r < gradient.rows; ++r) {
    std::fill_n(sum.get(), columns, 0.0f);
    for (const GradientPart& part : parts) {
      if (r < part.first_row || r >= part.first_row + part.rows) continue;
      const float* from = part.data + (r - part.first_row) * columns;
      for (std::int64_t i = 0; i < columns; ++i) sum[i] += from[i];
    }
    for (std::int64_t i = 0; i < columns; ++i) sum[i] *= gradient.scale;
    store_row(sum.get(), columns, to, r);
  }
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(run_gradient_chunk_target);
HWY_EXPORT(add_bias_gradient_target);
HWY_EXPORT(row_products_target);
HWY_EXPORT(store_gradient_target);

void run_gradient_chunk(const GradientInputs& in, const GradientChunk& chunk) {
  HWY_DYNAMIC_DISPATCH(run_gradient_chunk_target)(in, chunk);
}
void add_bias_gradient(const GradientInputs& in, const BiasTile& tile, BlockMask& mask) {
  HWY_DYNAMIC_DISPATCH(add_bias_gradient_target)(in, tile, mask);
}
void row_products(const AttentionProblem& problem, const AttentionBackward& tensors,
                  std::int64_t sequence, std::int64_t head, float* products) {
  HWY_DYNAMIC_DISPATCH(row_products_target)(problem, tensors, sequence, head, products);
}
void store_gradient(std::span<const GradientPart> parts, const StoredGradient& gradient,
                    const Rows& to) {
  HWY_DYNAMIC_DISPATCH(store_gradient_target)(parts, gradient, to);
}

}  // namespace qkv::cpu
#endif
