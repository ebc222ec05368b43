#include "support/attention_check.h"

#include <fmt/format.h>

#include <cmath>

#include "support/values.h"

namespace qkv::test {
namespace {

constexpr double kSlack = 1e-6;

// Both have been compared element by element with `exact`.
double limit_of(const std::vector<double>& exact, const std::vector<double>& plain) {
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    // Where the plain computation overflows it earns nobody any slack.
    const double difference = std::abs(plain[i] - exact[i]);
    if (std::isfinite(difference)) error = std::max(error, difference);
  }
  return 2 * error + kSlack;
}

bool same_class(double ours, double exact) {
  if (std::isnan(exact)) return std::isnan(ours);
  if (std::isinf(exact)) return ours == exact;
  return std::isfinite(ours);
}

// A row whose two largest weights are closer than the kernels can tell may name either.
void check_top_index(const AttentionStatistics& s, const ReferenceResult& exact,
                     const ReferenceResult& plain) {
  const std::vector<double> ours = values_of(s.top_index);
  ASSERT_EQ(s.top_index.dtype(), DType::i32);
  ASSERT_EQ(ours.size(), exact.top_index.size());
  const std::size_t keys = ours.empty() ? 0 : exact.weights.size() / ours.size();
  const double limit = limit_of(exact.top_weight, plain.top_weight);
  for (std::size_t row = 0; row < ours.size(); ++row) {
    const double expected = exact.top_index[row];
    if (std::isnan(exact.top_weight[row]) || ours[row] == expected) continue;
    const bool tie = expected >= 0 && ours[row] >= 0 && ours[row] < static_cast<double>(keys) &&
                     exact.weights[row * keys + static_cast<std::size_t>(ours[row])] >=
                         exact.top_weight[row] - 2 * limit;
    EXPECT_TRUE(tie) << "top_index of row " << row << " is " << ours[row] << ", expected "
                     << expected;
    if (!tie) return;
  }
}

// A share of rows jumps where a weight crosses 0.99: rows too close to call may count either way.
void check_saturation(const AttentionStatistics& s, const ReferenceProblem& p,
                      const ReferenceResult& exact, const ReferenceResult& plain) {
  const double limit = limit_of(exact.top_weight, plain.top_weight);
  const std::vector<double> ours = values_of(s.saturation);
  ASSERT_EQ(ours.size(), exact.saturation.size());
  for (std::size_t head = 0; head < ours.size(); ++head) {
    const auto b = static_cast<std::int64_t>(head) / p.heads;
    const auto h = static_cast<std::int64_t>(head) % p.heads;
    double low = 0, high = 0, seeing = 0;
    for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].q_rows; ++i) {
      const auto row = static_cast<std::size_t>(p.lse_row(b, h, i));
      if (exact.top_index[row] < 0) continue;
      ++seeing;
      low += exact.top_weight[row] > 0.99 + limit ? 1 : 0;
      high += exact.top_weight[row] > 0.99 - limit ? 1 : 0;
    }
    seeing = std::max(seeing, 1.0);
    EXPECT_GE(ours[head], low / seeing - kSlack) << "saturation of head " << head;
    EXPECT_LE(ours[head], high / seeing + kSlack) << "saturation of head " << head;
  }
}

void check_statistics(Statistics wanted, const AttentionStatistics& s, const ReferenceProblem& p,
                      const ReferenceResult& exact, const ReferenceResult& plain) {
  const auto check = [&](Statistics which, const char* name, const Tensor& ours,
                         const std::vector<double>& e, const std::vector<double>& x) {
    EXPECT_EQ(ours.defined(), has(wanted, which)) << name;
    if (has(wanted, which)) expect_close(name, ours, e, x);
  };
  using enum Statistics;
  check(max_logit, "max_logit", s.max_logit, exact.max_logit, plain.max_logit);
  check(score_moments, "score_mean", s.score_mean, exact.score_mean, plain.score_mean);
  check(score_moments, "score_var", s.score_var, exact.score_var, plain.score_var);
  check(entropy, "entropy", s.entropy, exact.entropy, plain.entropy);
  check(entropy, "entropy_mean", s.entropy_mean, exact.entropy_mean, plain.entropy_mean);
  check(entropy, "entropy_relative", s.entropy_relative, exact.entropy_relative,
        plain.entropy_relative);
  check(top_weight, "top_weight", s.top_weight, exact.top_weight, plain.top_weight);
  check(received, "received", s.received, exact.received, plain.received);
  EXPECT_EQ(s.top_index.defined(), has(wanted, top_weight));
  EXPECT_EQ(s.saturation.defined(), has(wanted, top_weight));
  if (!has(wanted, top_weight)) return;
  check_top_index(s, exact, plain);
  check_saturation(s, p, exact, plain);
}

void check_shapes(const AttentionInputs& in, const AttentionForward& forward, bool packed) {
  const Tensor& q = in.q;
  EXPECT_EQ(forward.out.dtype(), q.dtype());
  EXPECT_EQ(forward.lse.dtype(), DType::f32);
  const std::int64_t value_size = in.v.size(-1);
  EXPECT_EQ(forward.out.shape(), packed ? (Shape{q.size(0), q.size(1), value_size})
                                        : (Shape{q.size(0), q.size(1), q.size(2), value_size}));
  EXPECT_EQ(forward.lse.shape(),
            packed ? (Shape{q.size(1), q.size(0)}) : (Shape{q.size(0), q.size(1), q.size(2)}));
}

void check_grads(const AttentionInputs& in, const AttentionGrads& grads,
                 const ReferenceResult& exact, const ReferenceResult& plain) {
  EXPECT_EQ(grads.dq.shape(), in.q.shape());
  EXPECT_EQ(grads.dk.shape(), in.k.shape());
  EXPECT_EQ(grads.dv.shape(), in.v.shape());
  EXPECT_EQ(grads.dq.dtype(), in.q.dtype());
  expect_close("dq", grads.dq, exact.dq, plain.dq);
  expect_close("dk", grads.dk, exact.dk, plain.dk);
  expect_close("dv", grads.dv, exact.dv, plain.dv);
  const Bias& bias = in.options.bias;
  EXPECT_EQ(grads.dbias.defined(), bias.defined() && bias.gradient);
  if (grads.dbias.defined()) {
    const Tensor& of = bias.values.defined()   ? bias.values
                       : bias.slopes.defined() ? bias.slopes
                                               : bias.table;
    EXPECT_EQ(grads.dbias.shape(), of.shape());
    EXPECT_EQ(grads.dbias.dtype(), DType::f32);
    expect_close("dbias", grads.dbias, exact.dbias, plain.dbias);
  }
  EXPECT_EQ(grads.dsinks.defined(), in.options.sinks.defined());
  if (grads.dsinks.defined()) expect_close("dsinks", grads.dsinks, exact.dsinks, plain.dsinks);
}

}  // namespace

void expect_close(const std::string& what, const Tensor& ours, const std::vector<double>& exact,
                  const std::vector<double>& plain) {
  const std::vector<double> values = values_of(ours);
  ASSERT_EQ(values.size(), exact.size()) << what;
  const double limit = limit_of(exact, plain);
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!same_class(values[i], exact[i])) {
      ADD_FAILURE() << fmt::format("{} {} at {}: got {}, expected {}", what,
                                   to_string(ours.shape()), i, values[i], exact[i]);
      return;
    }
    if (std::isfinite(exact[i]) && std::abs(values[i] - exact[i]) > worst) {
      worst = std::abs(values[i] - exact[i]);
      where = i;
    }
  }
  if (worst <= limit) return;
  ADD_FAILURE() << fmt::format(
      "{} {}: error {:.3g} exceeds {:.3g} at {}: got {:.9g}, expected {:.9g}", what,
      to_string(ours.shape()), worst, limit, where, values[where], exact[where]);
}

void expect_same_bits(const std::string& what, const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  ASSERT_EQ(a.shape(), b.shape()) << what;
  if (bytes_of(a) == bytes_of(b)) return;
  const std::vector<double> x = values_of(a), y = values_of(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    ADD_FAILURE() << fmt::format("{} {}: {:.9g} and {:.9g} differ at {}", what,
                                 to_string(a.shape()), x[i], y[i], i);
    return;
  }
  ADD_FAILURE() << what << ": the bits differ (a zero's sign or a NaN's payload)";
}

AttentionRun run_attention(const AttentionInputs& in, Pass pass) {
  AttentionRun run;
  run.forward = attention_forward(in.q, in.k, in.v, in.options);
  if (pass == Pass::both) {
    run.grads = attention_backward({in.dout, in.dlse, in.dentropy}, in.q, in.k, in.v, run.forward,
                                   in.options);
  }
  return run;
}

void expect_same_bits(const AttentionRun& a, const AttentionRun& b) {
  const AttentionStatistics &s = a.forward.statistics, &t = b.forward.statistics;
  expect_same_bits("out", a.forward.out, b.forward.out);
  expect_same_bits("lse", a.forward.lse, b.forward.lse);
  expect_same_bits("max_logit", s.max_logit, t.max_logit);
  expect_same_bits("score_mean", s.score_mean, t.score_mean);
  expect_same_bits("score_var", s.score_var, t.score_var);
  expect_same_bits("entropy", s.entropy, t.entropy);
  expect_same_bits("entropy_mean", s.entropy_mean, t.entropy_mean);
  expect_same_bits("entropy_relative", s.entropy_relative, t.entropy_relative);
  expect_same_bits("top_weight", s.top_weight, t.top_weight);
  expect_same_bits("top_index", s.top_index, t.top_index);
  expect_same_bits("saturation", s.saturation, t.saturation);
  expect_same_bits("received", s.received, t.received);
  expect_same_bits("dq", a.grads.dq, b.grads.dq);
  expect_same_bits("dk", a.grads.dk, b.grads.dk);
  expect_same_bits("dv", a.grads.dv, b.grads.dv);
  expect_same_bits("dbias", a.grads.dbias, b.grads.dbias);
  expect_same_bits("dsinks", a.grads.dsinks, b.grads.dsinks);
}

void check_attention(const AttentionInputs& in, Pass pass) {
  AttentionInputs wanted = in;
  if (pass == Pass::forward) wanted.dout = {};
  const ReferenceProblem p = reference_problem(wanted);
  const ReferenceResult exact = reference_exact(p), plain = reference_plain(p);
  for_each_target([&] {
    const AttentionRun run = run_attention(in, pass);
    check_shapes(in, run.forward, p.packed);
    expect_close("out", run.forward.out, exact.out, plain.out);
    expect_close("lse", run.forward.lse, exact.lse, plain.lse);
    check_statistics(in.options.statistics, run.forward.statistics, p, exact, plain);
    if (pass == Pass::both) check_grads(in, run.grads, exact, plain);
  });
}

void check_attention(const AttentionCase& c, DType dtype, Pass pass) {
  SCOPED_TRACE(fmt::format("{} {} [B {}, H {}/{}, Sq {}, Sk {}, D {}, Dv {}]", c.name,
                           to_string(dtype), c.batch, c.heads, c.key_heads, c.queries, c.keys,
                           c.head_size, c.value_size > 0 ? c.value_size : c.head_size));
  check_attention(make_inputs(c, dtype), pass);
}

}  // namespace qkv::test
