// Attention of f32 that may round what it multiplies to TF32: how far off it may be, that it is
// taken where it is permitted and possible and nowhere else, and that hidden stays hidden.
//
// How far: TF32 keeps 10 bits of mantissa, so an operand errs by up to 2^-11 of itself. What that
// does to a result depends on the case, so it is measured: q, k, v and dout are rounded, and the
// result is computed from them in float64. A kernel rounds weights and gradients of scores as well,
// each of which is an operand beside one that was rounded already; so it may err three times as
// much. And 2^-9 more, a few roundings of values about 1, for what vanishes in exact arithmetic:
// with one key ds = p (dout . v - dout . out) is 0, but of the two products only the first is of
// rounded operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "qkv/autograd.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

constexpr double kFew = 0x1p-9;

double rounded_to_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::uint32_t kept = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
  return std::bit_cast<float>(kept);
}

double limit_in_tf32(const std::vector<double>& exact, const std::vector<double>& rounded,
                     double few = kFew) {
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double apart = std::abs(rounded[i] - exact[i]);
    if (std::isfinite(apart)) error = std::max(error, apart);
  }
  return 3 * error + few;
}

// The kernels that a call would run on the GPU.
AttentionKernels kernels_on_gpu(const AttentionInputs& in) {
  AttentionOptions options = in.options;
  for (Tensor* x : {&options.bias.values, &options.mask.allowed_pairs, &options.sinks}) {
    *x = on_device(*x, kGpu);
  }
  return attention_kernels(on_device(in.q, kGpu), on_device(in.k, kGpu), on_device(in.v, kGpu),
                           options);
}

AttentionInputs tf32_inputs(const AttentionCase& c) {
  AttentionInputs in = make_inputs(c, DType::f32);
  in.options.tf32 = true;
  return in;
}

class AttentionTf32 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
    set_test_device(kGpu);
  }
  void TearDown() override { set_test_device(kCpu); }
};

void check_tf32(const AttentionCase& c) {
  SCOPED_TRACE(c.name + " Sq " + std::to_string(c.queries) + " Sk " + std::to_string(c.keys) +
               " D " + std::to_string(c.head_size));
  const AttentionInputs in = tf32_inputs(c);
  if (c.query_offsets.empty()) {
    const AttentionKernels kernels = kernels_on_gpu(in);
    EXPECT_EQ(kernels.forward, "tf32");
    EXPECT_EQ(kernels.backward, "tf32");
  }
  const ReferenceProblem p = reference_problem(in);
  ReferenceProblem coarse = p;
  for (auto* x : {&coarse.q, &coarse.k, &coarse.v, &coarse.dout}) {
    std::transform(x->begin(), x->end(), x->begin(), rounded_to_tf32);
  }
  const ReferenceResult exact = reference_exact(p), rounded = reference_exact(coarse);
  const AttentionRun run = run_attention(in);
  const auto close = [&](const char* name, const Tensor& ours, auto member, double few = kFew) {
    expect_close(name, ours, exact.*member, limit_in_tf32(exact.*member, rounded.*member, few));
  };
  close("out", run.forward.out, &ReferenceResult::out);
  close("lse", run.forward.lse, &ReferenceResult::lse);
  close("dq", run.grads.dq, &ReferenceResult::dq);
  close("dk", run.grads.dk, &ReferenceResult::dk);
  close("dv", run.grads.dv, &ReferenceResult::dv);
  // One number for many rows: their errors add up, by chance to less in `rounded`.
  const double rows = kFew * std::sqrt(static_cast<double>(c.batch * c.queries));
  if (c.sinks) close("dsinks", run.grads.dsinks, &ReferenceResult::dsinks, rows);
  if (c.statistics == Statistics::all) {
    const AttentionStatistics& s = run.forward.statistics;
    close("max_logit", s.max_logit, &ReferenceResult::max_logit);
    close("score_mean", s.score_mean, &ReferenceResult::score_mean);
    close("score_var", s.score_var, &ReferenceResult::score_var);
    close("entropy", s.entropy, &ReferenceResult::entropy);
    close("entropy_mean", s.entropy_mean, &ReferenceResult::entropy_mean);
    close("entropy_relative", s.entropy_relative, &ReferenceResult::entropy_relative);
    close("top_weight", s.top_weight, &ReferenceResult::top_weight);
    close("received", s.received, &ReferenceResult::received, rows);
  }
  expect_same_bits(run, run_attention(in));
}

TEST_F(AttentionTf32, AnyLengths) {
  struct Rows {
    std::int64_t queries, keys;
  };
  // Around tiles of 32 and 64 keys, of 32 queries, and of 128 of either.
  for (const auto& [queries, keys] :
       {Rows{1, 1}, Rows{1, 65}, Rows{31, 33}, Rows{32, 32}, Rows{33, 31}, Rows{63, 64},
        Rows{64, 63}, Rows{65, 129}, Rows{127, 128}, Rows{128, 127}, Rows{129, 65}, Rows{259, 131},
        Rows{131, 259}}) {
    for (const std::int64_t size : {32, 64, 96, 128}) {
      const bool other = size % 64 == 0;
      const AttentionCase c{.name = "full", .queries = queries, .keys = keys, .head_size = size};
      AttentionCase cut = c;
      cut.name = "causal", cut.causal = true, cut.dlse = true;
      cut.layout = other ? Layout::heads_inside : Layout::row_major;
      cut.align = other ? Align::bottom_right : Align::top_left;
      check_tf32(c);
      check_tf32(cut);
      if (HasFailure()) return;
    }
  }
}

TEST_F(AttentionTf32, AnyMask) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    for (const std::int64_t size : {64, 128}) {
      C c{.name = name, .batch = 3, .queries = 150, .keys = 205, .head_size = size};
      change(c);
      check_tf32(c);
      c.name += ", statistics", c.statistics = Statistics::all;
      check_tf32(c);
    }
  };
  check("lengths", [](C& c) { c.key_lengths = {67, 0, 205}, c.query_lengths = {150, 129, 0}; });
  check("causal lengths", [](C& c) { c.key_lengths = {64, 1, 200}, c.causal = true; });
  check("window", [](C& c) { c.left = 13, c.right = 12, c.offset = 30; });
  check("left of a window", [](C& c) { c.left = 40, c.causal = true; });
  check("window beyond the keys", [](C& c) { c.left = c.right = 3, c.offset = 100; });
  check("offset", [](C& c) { c.causal = true, c.offset = -45; });
  check("offsets", [](C& c) { c.causal = true, c.offset_per_sequence = {0, -140, 300}; });
  check("heads share keys", [](C& c) { c.heads = 6, c.causal = true; });
  check("sinks", [](C& c) { c.sinks = true, c.causal = true, c.offset = -10, c.dlse = true; });
  check("scale", [](C& c) { c.scale = 0.01f; });
  check("sharp", [](C& c) { c.scale = 0.7f, c.causal = true; });
  check("other values", [](C& c) { c.value_size = 20; });
  check("other queries", [](C& c) { c.value_size = c.head_size, c.head_size = 12; });
  check("expanded", [](C& c) { c.layout = Layout::expanded; });
  check("packed", [](C& c) {
    c.query_offsets = {0, 9, 10, 170, 170}, c.key_offsets = {0, 12, 12, 240, 250}, c.causal = true;
  });
}

TEST_F(AttentionTf32, IsForWhatItCanDo) {
  using C = AttentionCase;
  const auto check = [&](std::string kernel, auto&& change) {
    C c{.queries = 40, .keys = 50, .head_size = 64};
    change(c);
    AttentionInputs in = tf32_inputs(c);
    const AttentionKernels kernels = kernels_on_gpu(in);
    EXPECT_EQ(kernels.forward, kernel);
    EXPECT_EQ(kernels.backward, kernel);
    const AttentionRun permitted = run_attention(in);
    in.options.tf32 = false;
    expect_same_bits(permitted, run_attention(in));
  };
  check("mma", [](C& c) { c.softcap = 2; });
  check("mma", [](C& c) { c.dropout = 0.2f; });
  check("mma", [](C& c) { c.bias = {1, 1, 40, 50}; });
  check("mma", [](C& c) { c.allowed = {1, 1, 40, 50}; });
  check("general: a head size above 128", [](C& c) { c.head_size = 132; });
  check("general: a head size that is no multiple of 4",
        [](C& c) { c.head_size = 66, c.value_size = 64; });
}

// Without permission nothing is rounded: the error is that of f32, thousands of times smaller.
TEST_F(AttentionTf32, IsOnlyTakenWhenPermitted) {
  const AttentionCase c{.queries = 150, .keys = 205, .head_size = 64};
  AttentionInputs in = make_inputs(c, DType::f32);
  EXPECT_EQ(kernels_on_gpu(in).forward, "mma");
  const ReferenceResult exact = reference_exact(reference_problem(in));
  const auto error = [&] {
    const std::vector<double> ours = values_of(run_attention(in, Pass::forward).forward.out);
    double largest = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(ours[i] - exact.out[i]));
    }
    return largest;
  };
  EXPECT_LT(error(), 2e-6);
  in.options.tf32 = true;
  EXPECT_GT(error(), 2e-5);
}

TEST_F(AttentionTf32, ReachesBackwardThroughATape) {
  const AttentionInputs in = tf32_inputs({.queries = 70, .keys = 90, .head_size = 64});
  const AttentionRun expected = run_attention(in);
  const Tensor q = on_device(in.q, kGpu), k = on_device(in.k, kGpu), v = on_device(in.v, kGpu);
  const Tensor dout = on_device(in.dout, kGpu);
  const Gradients grads = [&] {
    Tape tape;
    return tape.backward(attention(q, k, v, in.options), dout);
  }();
  expect_same_bits("dq", grads[q], expected.grads.dq);
  expect_same_bits("dk", grads[k], expected.grads.dk);
  expect_same_bits("dv", grads[v], expected.grads.dv);
}

void fill_rows(const Tensor& x, std::int64_t first, std::int64_t last, float value) {
  const std::int64_t size = x.size(-1);
  std::fill(x.data<float>() + first * size, x.data<float>() + last * size, value);
}

// Rows of one head, one sequence: NaN in the rows that feel it, and in others what they had.
// Gradients of inputs with NaN come from the exact kernels, and are that far from those without.
void expect_felt(const char* what, const Tensor& clean, const Tensor& poisoned, double apart,
                 auto&& feels) {
  const std::vector<double> a = values_of(clean), b = values_of(poisoned);
  const auto size = static_cast<std::size_t>(clean.size(-1));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / size);
    const bool fine = feels(row) ? std::isnan(b[i]) : std::abs(a[i] - b[i]) <= apart;
    ASSERT_TRUE(fine) << what << " row " << row << ": " << a[i] << " became " << b[i];
  }
}

TEST_F(AttentionTf32, NanReachesExactlyWhoSeesIt) {
  constexpr std::int64_t kRows = 210, kAt = 105;
  constexpr double kGradient = 2e-2;
  const auto nobody = [](std::int64_t) { return false; };
  for (const std::int64_t size : {64, 128}) {
    const AttentionCase c{.batch = 1,
                          .heads = 1,
                          .key_heads = 1,
                          .queries = kRows,
                          .keys = kRows,
                          .head_size = size,
                          .causal = true};
    const AttentionRun clean = run_attention(tf32_inputs(c));
    // Of values, keys, queries and gradients: which rows of `out` feel it, by the diagonal.
    const auto from = [](std::int64_t row) { return row >= kAt; };
    const auto only = [](std::int64_t row) { return row == kAt; };
    const auto up_to = [](std::int64_t row) { return row <= kAt; };
    const auto all = [](std::int64_t) { return true; };
    AttentionInputs in = tf32_inputs(c);
    fill_rows(in.v, kAt, kAt + 1, kNan);
    AttentionRun run = run_attention(in);
    expect_felt("out", clean.forward.out, run.forward.out, 0, from);
    expect_felt("dq", clean.grads.dq, run.grads.dq, kGradient, from);
    expect_felt("dk", clean.grads.dk, run.grads.dk, kGradient, all);
    expect_felt("dv", clean.grads.dv, run.grads.dv, kGradient, nobody);
    in = tf32_inputs(c);
    fill_rows(in.k, kAt, kAt + 1, kNan);
    run = run_attention(in);
    expect_felt("out", clean.forward.out, run.forward.out, 0, from);
    expect_felt("dq", clean.grads.dq, run.grads.dq, kGradient, from);
    in = tf32_inputs(c);
    fill_rows(in.dout, kAt, kAt + 1, kNan);
    run = run_attention(in);
    expect_felt("out", clean.forward.out, run.forward.out, 0, nobody);
    expect_felt("dq", clean.grads.dq, run.grads.dq, kGradient, only);
    expect_felt("dk", clean.grads.dk, run.grads.dk, kGradient, up_to);
    expect_felt("dv", clean.grads.dv, run.grads.dv, kGradient, up_to);
    if (HasFailure()) return;
  }
}

TEST_F(AttentionTf32, HiddenCannotBeFelt) {
  for (const std::int64_t size : {64, 128}) {
    // Keys that nobody sees: beyond the lengths, and outside of every row's window.
    AttentionCase c{.batch = 1, .queries = 70, .keys = 205, .head_size = size, .left = 10};
    c.right = 10, c.offset = 50, c.key_lengths = {100}, c.query_lengths = {60};
    const AttentionRun clean = run_attention(tf32_inputs(c));
    for (const float value :
         {kNan, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()}) {
      AttentionInputs in = tf32_inputs(c);
      for (const std::int64_t head : {0, 1}) {
        for (const Tensor& x : {in.k, in.v}) {
          fill_rows(x, 205 * head, 205 * head + 40, value);
          fill_rows(x, 205 * head + 100, 205 * head + 205, value);
        }
        for (const Tensor& x : {in.q, in.dout}) {
          fill_rows(x, 70 * head + 60, 70 * head + 70, value);
        }
      }
      // All of it lies outside of what tiles are loaded from: not a bit changes.
      expect_same_bits(clean, run_attention(in));
    }
  }
}

// On the CPU there is nothing to permit.
TEST(AttentionTf32OnCpu, ChangesNothing) {
  if (!tests_run_on(DeviceType::cpu)) GTEST_SKIP() << "this run is for a GPU";
  const AttentionCase c{.queries = 40, .keys = 50, .head_size = 64, .causal = true};
  const AttentionRun permitted = run_attention(tf32_inputs(c));
  expect_same_bits(run_attention(make_inputs(c, DType::f32)), permitted);
}

}  // namespace
}  // namespace qkv::test
