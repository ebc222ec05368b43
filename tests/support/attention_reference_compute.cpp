// The formulas of the reference, once, for both arithmetics.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "core/dispatch.h"
#include "support/attention_reference.h"

namespace qkv::test {
namespace {

struct Exact {
  using Real = double;
  static double step(double x) { return x; }
  static double result(double x) { return x; }
};

template <class T>
float rounded(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return static_cast<float>(T(x));
  }
}

// The dtypes that scores and weights, and that results, are left in.
template <class Step, class Result>
struct Plain {
  using Real = float;
  static float step(float x) { return rounded<Step>(x); }
  static float result(float x) { return rounded<Result>(x); }
};

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

template <class A>
class Computation {
  using Real = typename A::Real;
  using Vector = std::vector<Real>;
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

  // The rows of k and v of a head's keys.
  struct Places {
    std::int64_t first = 0, step = 1;
    std::int64_t operator()(std::int64_t j) const { return first + j * step; }
  };

  // What one query sees: the visible keys and, in the same order, their scores.
  struct Row {
    std::int64_t b = 0, h = 0, i = 0;
    std::vector<std::int64_t> keys{};
    Vector logit{};   // a
    Vector score{};   // s
    Vector weight{};  // p
    Real lse = -kInfinity, sink_weight = 0, expected_score = 0, entropy = 0;
  };

 public:
  explicit Computation(const ReferenceProblem& p) : p_(p) {
    const auto convert = [](const std::vector<double>& x) { return Vector(x.begin(), x.end()); };
    q_ = convert(p.q);
    k_ = convert(p.k);
    v_ = convert(p.v);
    dout_ = convert(p.dout);
    const std::size_t sequences = p.sequences.size(), heads = sequences * at(p.heads);
    const std::size_t batch = p.packed ? 1 : sequences;
    const std::size_t rows = batch * at(p.heads * p.q_rows);
    const std::size_t keys = batch * at(p.heads * p.k_rows);
    r_.out.resize(rows * at(p.value_size));
    for (auto* x : {&r_.lse, &r_.entropy, &r_.top_weight, &r_.top_index}) x->resize(rows);
    for (auto* x : {&r_.max_logit, &r_.score_mean, &r_.score_var, &r_.entropy_mean,
                    &r_.entropy_relative, &r_.saturation}) {
      x->resize(heads);
    }
    received_.resize(keys);
    r_.weights.resize(rows * at(p.k_rows));
    dq_.resize(q_.size());
    dk_.resize(k_.size());
    dv_.resize(v_.size());
    dbias_.resize(std::max({p.bias.values.size(), p.slopes.values.size(), p.table.size()}));
    dsinks_.resize(p.sinks.size());
  }

  ReferenceResult run() {
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(p_.sequences.size()); ++b) {
      for (std::int64_t h = 0; h < p_.heads; ++h) head(b, h);
    }
    const auto convert = [](const Vector& x) { return std::vector<double>(x.begin(), x.end()); };
    const auto finish = [&](Vector& x, Real factor) {
      for (Real& value : x) value = A::result(factor * value);
      return convert(x);
    };
    r_.received = convert(received_);
    r_.dq = finish(dq_, static_cast<Real>(p_.scale));
    r_.dk = finish(dk_, static_cast<Real>(p_.scale));
    r_.dv = finish(dv_, 1);
    r_.dbias = convert(dbias_);
    r_.dsinks = convert(dsinks_);
    return std::move(r_);
  }

 private:
  // Row x_row of x times those rows of y that `keys` are in. Each is one sum, as a plain loop has
  // it, of which the machine makes four at once.
  static Vector products(const Vector& x, std::int64_t x_row, const Vector& y,
                         const std::vector<std::int64_t>& keys, Places y_row, std::int64_t size) {
    constexpr std::size_t kSums = 4;
    const Real* a = x.data() + x_row * size;
    Vector result(keys.size());
    std::size_t n = 0;
    for (; n + kSums <= keys.size(); n += kSums) {
      const Real* b[kSums];
      Real sum[kSums] = {};
      for (std::size_t m = 0; m < kSums; ++m) b[m] = y.data() + y_row(keys[n + m]) * size;
      for (std::int64_t d = 0; d < size; ++d) {
        for (std::size_t m = 0; m < kSums; ++m) sum[m] += a[d] * b[m][d];
      }
      std::copy_n(sum, kSums, &result[n]);
    }
    for (; n < keys.size(); ++n) {
      const Real* b = y.data() + y_row(keys[n]) * size;
      for (std::int64_t d = 0; d < size; ++d) result[n] += a[d] * b[d];
    }
    return result;
  }

  static void add(Real factor, const Real* x, std::int64_t size, Real* sum) {
    for (std::int64_t d = 0; d < size; ++d) sum[d] += factor * x[d];
  }

  // One division for a head, not three for each of its pairs.
  Places keys_of(std::int64_t b, std::int64_t h) const {
    return {p_.k_row(b, h, 0), p_.packed ? p_.key_heads : 1};
  }

  void head(std::int64_t b, std::int64_t h) {
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < p_.sequences[at(b)].q_rows; ++i) {
      Row row = score(b, h, i);
      weigh(row);
      row_statistics(row);
      if (!dout_.empty() && !row.keys.empty()) backward(row);
      row.weight.clear();
      rows.push_back(std::move(row));
    }
    head_statistics(rows, at(b * p_.heads + h));
  }

  Row score(std::int64_t b, std::int64_t h, std::int64_t i) const {
    Row row{.b = b, .h = h, .i = i};
    const bool biased = p_.bias.defined() || p_.slopes.defined() || !p_.table.empty();
    const std::int64_t k_rows = p_.sequences[at(b)].k_rows;
    row.keys.reserve(at(k_rows));
    Vector biases;
    for (std::int64_t j = 0; j < k_rows; ++j) {
      if (!visible(p_, b, h, i, j)) continue;
      const Real bias = biased ? static_cast<Real>(bias_of(p_, b, h, i, j)) : 0;
      if (bias == -kInfinity) continue;
      row.keys.push_back(j);
      if (biased) biases.push_back(bias);
    }
    row.logit = products(q_, p_.q_row(b, h, i), k_, row.keys, keys_of(b, h), p_.head_size);
    for (Vector* x : {&row.score, &row.weight}) x->reserve(row.keys.size());
    const auto cap = static_cast<Real>(p_.softcap);
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      Real& a = row.logit[n];
      a = A::step(static_cast<Real>(p_.scale) * a);
      const Real c = cap > 0 ? A::step(cap * std::tanh(a / cap)) : a;
      row.score.push_back(biased ? A::step(c + biases[n]) : c);
    }
    return row;
  }

  // Scores to weights, and weights to out.
  void weigh(Row& row) {
    const std::int64_t lse_row = p_.lse_row(row.b, row.h, row.i);
    r_.lse[at(lse_row)] = static_cast<double>(row.lse);
    if (row.keys.empty()) return;
    const bool sink = !p_.sinks.empty();
    const Real sink_score = sink ? static_cast<Real>(p_.sinks[at(row.h)]) : -kInfinity;
    Real highest = sink_score;
    for (const Real s : row.score) highest = std::fmax(highest, s);
    Real sum = sink ? std::exp(sink_score - highest) : 0;
    for (const Real s : row.score) {
      row.weight.push_back(std::exp(s - highest));
      sum += row.weight.back();
    }
    row.lse = highest + std::log(sum);
    row.sink_weight = sink ? std::exp(sink_score - highest) / sum : 0;
    r_.lse[at(lse_row)] = static_cast<double>(row.lse);

    const auto kept = static_cast<Real>(1 - p_.dropout);
    const Places v_row = keys_of(row.b, row.h);
    Vector out(at(p_.value_size));
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      const std::int64_t j = row.keys[n];
      const Real weight = A::step(row.weight[n] / sum);
      const bool keep = p_.dropout == 0 || kept_by_dropout(p_, row.b, row.h, row.i, j);
      const Real dropped = keep ? A::step(weight / kept) : 0;
      row.weight[n] = weight;
      row.expected_score += weight * row.score[n];
      if (keep) add(dropped, &v_[at(v_row(j) * p_.value_size)], p_.value_size, out.data());
      r_.weights[at(lse_row * p_.k_rows + j)] = static_cast<double>(weight);
    }
    const std::int64_t first = p_.q_row(row.b, row.h, row.i) * p_.value_size;
    for (std::int64_t d = 0; d < p_.value_size; ++d) r_.out[at(first + d)] = A::result(out[at(d)]);
  }

  void row_statistics(Row& row) {
    const std::size_t index = at(p_.lse_row(row.b, row.h, row.i));
    r_.top_index[index] = -1;
    if (row.keys.empty()) return;
    row.entropy = row.lse - row.expected_score;
    r_.entropy[index] = static_cast<double>(row.entropy);
    const std::int64_t received = p_.received_row(row.b, row.h, 0);
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      received_[at(received + row.keys[n])] += row.weight[n];
      if (n == 0 || !(static_cast<double>(row.weight[n]) <= r_.top_weight[index])) {
        r_.top_weight[index] = static_cast<double>(row.weight[n]);
        r_.top_index[index] = static_cast<double>(row.keys[n]);
      }
    }
  }

  void head_statistics(const std::vector<Row>& rows, std::size_t index) {
    Real highest = -kInfinity, total = 0, squares = 0, entropy = 0, relative = 0;
    std::int64_t pairs = 0, seeing = 0, saturated = 0;
    for (const Row& row : rows) {
      if (row.keys.empty()) continue;
      ++seeing;
      pairs += static_cast<std::int64_t>(row.keys.size());
      for (const Real a : row.logit) highest = std::isnan(a) ? a : std::max(highest, a);
      total += std::accumulate(row.score.begin(), row.score.end(), Real{0});
      entropy += row.entropy;
      if (row.keys.size() > 1) {
        relative += row.entropy / std::log(static_cast<Real>(row.keys.size()));
      }
      saturated += r_.top_weight[at(p_.lse_row(row.b, row.h, row.i))] > 0.99 ? 1 : 0;
    }
    r_.max_logit[index] = static_cast<double>(highest);
    if (pairs == 0) return;
    const Real mean = total / static_cast<Real>(pairs);
    for (const Row& row : rows) {
      Real sum = 0;
      for (const Real s : row.score) sum += (s - mean) * (s - mean);
      squares += sum;
    }
    r_.score_mean[index] = static_cast<double>(mean);
    r_.score_var[index] = static_cast<double>(squares / static_cast<Real>(pairs));
    r_.entropy_mean[index] = static_cast<double>(entropy / static_cast<Real>(seeing));
    r_.entropy_relative[index] = static_cast<double>(relative / static_cast<Real>(seeing));
    r_.saturation[index] = static_cast<double>(saturated) / static_cast<double>(seeing);
  }

  void backward(const Row& row) {
    const std::int64_t q_row = p_.q_row(row.b, row.h, row.i);
    const std::size_t lse_row = at(p_.lse_row(row.b, row.h, row.i));
    const Real dlse = p_.dlse.empty() ? 0 : static_cast<Real>(p_.dlse[lse_row]);
    const Real dentropy = p_.dentropy.empty() ? 0 : static_cast<Real>(p_.dentropy[lse_row]);
    // Summed from the back: in the order of dp below, a row that sees one key would have
    // dp - r = 0 without any rounding, an accident that no tiled sum can repeat.
    Real r = 0;
    for (std::int64_t d = p_.value_size - 1; d >= 0; --d) {
      const std::size_t index = at(q_row * p_.value_size + d);
      r += dout_[index] * static_cast<Real>(r_.out[index]);
    }
    const auto cap = static_cast<Real>(p_.softcap);
    const Places places = keys_of(row.b, row.h);
    const Vector of_weights = products(dout_, q_row, v_, row.keys, places, p_.value_size);
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      const std::int64_t k_row = places(row.keys[n]);
      const bool keep = p_.dropout == 0 || kept_by_dropout(p_, row.b, row.h, row.i, row.keys[n]);
      // Recomputed from lse, as backward is defined: what lse loses by being f32 is lost here too.
      const Real weight =
          std::is_same_v<A, Exact> ? row.weight[n] : A::step(std::exp(row.score[n] - row.lse));
      const Real product = A::step(of_weights[n]);
      const Real kept = keep ? 1 / static_cast<Real>(1 - p_.dropout) : 0;
      const Real dp = keep ? product * kept : 0;
      const Real ds =
          A::step(weight * (dp - r + dlse - dentropy * (row.score[n] - row.expected_score)));
      const Real tanh = cap > 0 ? std::tanh(row.logit[n] / cap) : 0;
      const Real da = cap > 0 ? A::step(ds * (1 - tanh * tanh)) : ds;
      const std::size_t q_at = at(q_row * p_.head_size), k_at = at(k_row * p_.head_size);
      add(da, &k_[k_at], p_.head_size, &dq_[q_at]);
      add(da, &q_[q_at], p_.head_size, &dk_[k_at]);
      const Real dropped = A::step(weight * kept);
      if (keep) {
        add(dropped, &dout_[at(q_row * p_.value_size)], p_.value_size,
            &dv_[at(k_row * p_.value_size)]);
      }
      add_dbias(row, row.keys[n], ds);
    }
    if (!p_.sinks.empty()) {
      dsinks_[at(row.h)] += row.sink_weight * (dlse - r + dentropy * (1 + row.expected_score));
    }
  }

  void add_dbias(const Row& row, std::int64_t j, Real ds) {
    const std::int64_t relative = j - (row.i + p_.sequences[at(row.b)].offset);
    if (p_.bias.defined()) {
      dbias_[p_.bias.index(row.b, row.h, row.i, j)] += ds;
    } else if (p_.slopes.defined()) {
      dbias_[p_.slopes.index(row.b, row.h, 0, 0)] -= ds * static_cast<Real>(std::abs(relative));
    } else if (!p_.table.empty()) {
      dbias_[at(bucket_of(p_, row.b, row.i, j) * p_.heads + row.h)] += ds;
    }
  }

  const ReferenceProblem& p_;
  Vector q_, k_, v_, dout_;
  Vector dq_, dk_, dv_, dbias_, dsinks_, received_;
  ReferenceResult r_;
};

}  // namespace

ReferenceResult reference_exact(const ReferenceProblem& p) { return Computation<Exact>(p).run(); }

ReferenceResult reference_plain(const ReferenceProblem& p) {
  return dispatch_float(p.dtype, [&]<class T>() -> ReferenceResult {
    ReferenceResult r = Computation<Plain<T, T>>(p).run();
    // Scores beyond what f16 holds: no such computation exists, so the steps stay in f32.
    const bool overflow = std::any_of(r.lse.begin(), r.lse.end(), [](double x) {
      return std::isnan(x) || x == std::numeric_limits<double>::infinity();
    });
    return overflow ? Computation<Plain<float, T>>(p).run() : r;
  });
}

}  // namespace qkv::test
