#include "support/attention_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "core/backend.h"
#include "qkv/error.h"
#include "qkv/ops.h"
#include "support/values.h"

namespace qkv::test {
namespace {

constexpr double kSlack = 1e-6;

// Over the finite differences.
double max_error(const std::vector<double>& x, const std::vector<double>& exact) {
  double error = 0;
  for (std::size_t i = 0; i < std::min(x.size(), exact.size()); ++i) {
    const double difference = std::abs(x[i] - exact[i]);
    if (std::isfinite(difference)) error = std::max(error, difference);
  }
  return error;
}

bool same_class(double ours, double exact) {
  if (std::isnan(exact)) return std::isnan(ours);
  if (std::isinf(exact)) return ours == exact;
  return std::isfinite(ours);
}

Device the_device = kCpu;

AttentionInputs moved(const AttentionInputs& in, Device device) {
  AttentionInputs there = in;
  AttentionOptions& o = there.options;
  for (Tensor* t : {&there.q, &there.k, &there.v, &there.dout, &there.dlse, &there.dentropy,
                    &o.mask.allowed_pairs, &o.mask.global_positions, &o.bias.values, &o.bias.slopes,
                    &o.bias.table, &o.sinks}) {
    *t = on_device(*t, device);
  }
  return there;
}

using Member = std::vector<double> ReferenceResult::*;

struct Pair {
  ReferenceResult exact, plain;
};
Pair solve(const ReferenceProblem& p) { return {reference_exact(p), reference_plain(p)}; }

// Compares one call with the reference.
class Judge {
 public:
  // `redraw` solves the same case with other data.
  Judge(const ReferenceProblem& p, std::function<Pair(int)> redraw)
      : p_(p), pair_(solve(p)), redraw_(std::move(redraw)) {}

  void check_forward(const AttentionInputs& in, const AttentionForward& forward);
  void check_grads(const AttentionInputs& in, const AttentionGrads& grads);

 private:
  void close(const char* name, const Tensor& ours, Member member);
  double limit(Member member) const { return limit_of(pair_.exact.*member, pair_.plain.*member); }
  void check_statistics(Statistics wanted, const AttentionStatistics& s);
  void check_top_index(const AttentionStatistics& s) const;
  void check_saturation(const AttentionStatistics& s) const;

  const ReferenceProblem& p_;
  Pair pair_;
  std::function<Pair(int)> redraw_;
  std::vector<Pair> others_;
};

// The largest error of a few rows, or of one sum over all pairs whose exact value is 0, is luck: it
// may be 0 in one rounding and not in another. Where ours is beyond the limit, the plain
// computation gets some more draws of the same case, and its largest error over them counts.
void Judge::close(const char* name, const Tensor& ours, Member member) {
  constexpr int kDraws = 8;
  const std::vector<double>& exact = pair_.exact.*member;
  double allowed = limit(member);
  if (redraw_ && max_error(values_of(ours), exact) > allowed) {
    for (int draw = static_cast<int>(others_.size()); draw < kDraws; ++draw) {
      others_.push_back(redraw_(draw));
    }
    for (const Pair& other : others_) {
      allowed = std::max(allowed, limit_of(other.exact.*member, other.plain.*member));
    }
  }
  expect_close(name, ours, exact, allowed);
}

// A row whose two largest weights are closer than the kernels can tell may name either.
void Judge::check_top_index(const AttentionStatistics& s) const {
  const ReferenceResult& exact = pair_.exact;
  const std::vector<double> ours = values_of(s.top_index);
  ASSERT_EQ(s.top_index.dtype(), DType::i32);
  ASSERT_EQ(ours.size(), exact.top_index.size());
  const std::size_t keys = ours.empty() ? 0 : exact.weights.size() / ours.size();
  const double allowed = limit(&ReferenceResult::top_weight);
  for (std::size_t row = 0; row < ours.size(); ++row) {
    const double expected = exact.top_index[row];
    if (std::isnan(exact.top_weight[row]) || ours[row] == expected) continue;
    const bool tie = expected >= 0 && ours[row] >= 0 && ours[row] < static_cast<double>(keys) &&
                     exact.weights[row * keys + static_cast<std::size_t>(ours[row])] >=
                         exact.top_weight[row] - 2 * allowed;
    EXPECT_TRUE(tie) << "top_index of row " << row << " is " << ours[row] << ", expected "
                     << expected;
    if (!tie) return;
  }
}

// A share of rows jumps where a weight crosses 0.99: rows too close to call may count either way.
void Judge::check_saturation(const AttentionStatistics& s) const {
  const ReferenceResult& exact = pair_.exact;
  const double allowed = limit(&ReferenceResult::top_weight);
  const std::vector<double> ours = values_of(s.saturation);
  ASSERT_EQ(ours.size(), exact.saturation.size());
  for (std::size_t head = 0; head < ours.size(); ++head) {
    const auto b = static_cast<std::int64_t>(head) / p_.heads;
    const auto h = static_cast<std::int64_t>(head) % p_.heads;
    double low = 0, high = 0, seeing = 0;
    for (std::int64_t i = 0; i < p_.sequences[static_cast<std::size_t>(b)].q_rows; ++i) {
      const auto row = static_cast<std::size_t>(p_.lse_row(b, h, i));
      if (exact.top_index[row] < 0) continue;
      ++seeing;
      low += exact.top_weight[row] > 0.99 + allowed ? 1 : 0;
      high += exact.top_weight[row] > 0.99 - allowed ? 1 : 0;
    }
    seeing = std::max(seeing, 1.0);
    EXPECT_GE(ours[head], low / seeing - kSlack) << "saturation of head " << head;
    EXPECT_LE(ours[head], high / seeing + kSlack) << "saturation of head " << head;
  }
}

void Judge::check_statistics(Statistics wanted, const AttentionStatistics& s) {
  using R = ReferenceResult;
  using enum Statistics;
  const auto check = [&](Statistics which, const char* name, const Tensor& ours, Member member) {
    EXPECT_EQ(ours.defined(), has(wanted, which)) << name;
    if (has(wanted, which)) close(name, ours, member);
  };
  check(max_logit, "max_logit", s.max_logit, &R::max_logit);
  check(score_moments, "score_mean", s.score_mean, &R::score_mean);
  check(score_moments, "score_var", s.score_var, &R::score_var);
  check(entropy, "entropy", s.entropy, &R::entropy);
  check(entropy, "entropy_mean", s.entropy_mean, &R::entropy_mean);
  check(entropy, "entropy_relative", s.entropy_relative, &R::entropy_relative);
  check(top_weight, "top_weight", s.top_weight, &R::top_weight);
  check(received, "received", s.received, &R::received);
  EXPECT_EQ(s.top_index.defined(), has(wanted, top_weight));
  EXPECT_EQ(s.saturation.defined(), has(wanted, top_weight | saturation));
  if (s.top_index.defined()) check_top_index(s);
  if (s.saturation.defined()) check_saturation(s);
}

void Judge::check_forward(const AttentionInputs& in, const AttentionForward& forward) {
  const Tensor& q = in.q;
  const std::int64_t value_size = in.v.size(-1);
  EXPECT_EQ(forward.out.dtype(), q.dtype());
  EXPECT_EQ(forward.lse.dtype(), DType::f32);
  EXPECT_EQ(forward.out.shape(), p_.packed ? (Shape{q.size(0), q.size(1), value_size})
                                           : (Shape{q.size(0), q.size(1), q.size(2), value_size}));
  EXPECT_EQ(forward.lse.shape(),
            p_.packed ? (Shape{q.size(1), q.size(0)}) : (Shape{q.size(0), q.size(1), q.size(2)}));
  close("out", forward.out, &ReferenceResult::out);
  close("lse", forward.lse, &ReferenceResult::lse);
  check_statistics(in.options.statistics, forward.statistics);
}

void Judge::check_grads(const AttentionInputs& in, const AttentionGrads& grads) {
  EXPECT_EQ(grads.dq.shape(), in.q.shape());
  EXPECT_EQ(grads.dk.shape(), in.k.shape());
  EXPECT_EQ(grads.dv.shape(), in.v.shape());
  EXPECT_EQ(grads.dq.dtype(), in.q.dtype());
  close("dq", grads.dq, &ReferenceResult::dq);
  close("dk", grads.dk, &ReferenceResult::dk);
  close("dv", grads.dv, &ReferenceResult::dv);
  const Bias& bias = in.options.bias;
  EXPECT_EQ(grads.dbias.defined(), bias.defined() && bias.gradient);
  if (grads.dbias.defined()) {
    const Tensor& of = bias.values.defined()   ? bias.values
                       : bias.slopes.defined() ? bias.slopes
                                               : bias.table;
    EXPECT_EQ(grads.dbias.shape(), of.shape());
    EXPECT_EQ(grads.dbias.dtype(), DType::f32);
    close("dbias", grads.dbias, &ReferenceResult::dbias);
  }
  EXPECT_EQ(grads.dsinks.defined(), in.options.sinks.defined());
  if (grads.dsinks.defined()) close("dsinks", grads.dsinks, &ReferenceResult::dsinks);
}

void check_with(const AttentionInputs& in, Pass pass, std::function<Pair(int)> redraw) {
  AttentionInputs wanted = in;
  if (pass == Pass::forward) wanted.dout = {};
  const ReferenceProblem p = reference_problem(wanted);
  Judge judge(p, std::move(redraw));
  for_each_target([&] {
    const AttentionRun run = run_attention(in, pass);
    judge.check_forward(in, run.forward);
    if (pass == Pass::both) judge.check_grads(in, run.grads);
  });
}

}  // namespace

double limit_of(const std::vector<double>& exact, const std::vector<double>& plain) {
  // Where the plain computation overflows it earns nobody any slack: max_error skips that.
  return 2 * max_error(plain, exact) + kSlack;
}

void expect_close(const std::string& what, const Tensor& ours, const std::vector<double>& exact,
                  double limit) {
  const std::vector<double> values = values_of(ours);
  ASSERT_EQ(values.size(), exact.size()) << what;
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

Device test_device() { return the_device; }
void set_test_device(Device device) { the_device = device; }

bool tests_run_on(DeviceType type) {
  static const std::string wanted = [] {
    const char* name = std::getenv("QKV_TEST_DEVICE");
    return std::string(name != nullptr ? name : "");
  }();
  if (type == DeviceType::cpu) return wanted != "cuda";
  if (wanted == "cpu") return false;
  static const bool has_cuda = [] {
    try {
      backend({DeviceType::cuda, 0});
      return true;
    } catch (const Error&) {
      return false;
    }
  }();
  return has_cuda;
}

AttentionRun run_attention(const AttentionInputs& given, Pass pass) {
  const AttentionInputs in = test_device() == kCpu ? given : moved(given, test_device());
  AttentionRun run;
  run.forward = attention_forward(in.q, in.k, in.v, in.options);
  if (pass == Pass::both) {
    run.grads = attention_backward({in.dout, in.dlse, in.dentropy}, in.q, in.k, in.v, run.forward,
                                   in.options);
  }
  return run;
}

Tensor run_weights(const AttentionInputs& given, const WeightsSelection& selection) {
  const AttentionInputs in = test_device() == kCpu ? given : moved(given, test_device());
  return attention_weights(in.q, in.k, in.options, selection);
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

void check_attention(const AttentionInputs& in, Pass pass) { check_with(in, pass, {}); }

void check_attention(const AttentionCase& c, DType dtype, Pass pass) {
  SCOPED_TRACE(fmt::format("{} {} [B {}, H {}/{}, Sq {}, Sk {}, D {}, Dv {}]", c.name,
                           to_string(dtype), c.batch, c.heads, c.key_heads, c.queries, c.keys,
                           c.head_size, c.value_size > 0 ? c.value_size : c.head_size));
  check_with(make_inputs(c, dtype), pass, [&](int draw) {
    AttentionCase other = c;
    other.data = c.data + 1'000'000 * static_cast<std::uint64_t>(draw + 1);
    return solve(reference_problem(make_inputs(other, dtype)));
  });
}

}  // namespace qkv::test
