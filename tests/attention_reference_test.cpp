// The reference itself: its gradients against finite differences, its forward against closed
// forms. Nothing here runs a kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/attention_reference.h"

namespace qkv::test {
namespace {

// The loss whose gradients dout, dlse and dentropy are; rows that see nothing have no part in it.
double loss(const ReferenceProblem& p) {
  const ReferenceResult r = reference_exact(p);
  double sum = 0;
  for (std::size_t i = 0; i < r.out.size(); ++i) sum += p.dout[i] * r.out[i];
  for (std::size_t i = 0; i < r.lse.size(); ++i) {
    if (std::isinf(r.lse[i])) continue;
    if (!p.dlse.empty()) sum += p.dlse[i] * r.lse[i];
    if (!p.dentropy.empty()) sum += p.dentropy[i] * r.entropy[i];
  }
  return sum;
}

void check_differences(const char* what, ReferenceProblem& p, std::vector<double>& input,
                       const std::vector<double>& gradient) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(input.size(), gradient.size()) << what;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double value = input[i];
    if (std::isinf(value)) {
      EXPECT_EQ(gradient[i], 0) << what << " where a bias hides, at " << i;
      continue;
    }
    input[i] = value + kStep;
    const double above = loss(p);
    input[i] = value - kStep;
    const double below = loss(p);
    input[i] = value;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-7 * (1 + std::abs(gradient[i])))
        << what << " at " << i;
  }
}

const AttentionCase kSmall{.heads = 2,
                           .key_heads = 1,
                           .queries = 3,
                           .keys = 5,
                           .head_size = 3,
                           .value_size = 2,
                           .dlse = true,
                           .dentropy = true};

AttentionCase small(std::string name, auto&& change) {
  AttentionCase c = kSmall;
  c.name = std::move(name);
  change(c);
  return c;
}

std::vector<AttentionCase> gradient_cases() {
  using C = AttentionCase;
  return {
      small("none", [](C&) {}),
      small("out alone", [](C& c) { c.dlse = c.dentropy = false; }),
      small("softcap", [](C& c) { c.softcap = 1.5f; }),
      small("sinks", [](C& c) { c.sinks = true; }),
      small("dropout", [](C& c) { c.dropout = 0.4f; }),
      small("dropout, sinks and softcap",
            [](C& c) { c.dropout = 0.3f, c.sinks = true, c.softcap = 2, c.causal = true; }),
      small("bias",
            [](C& c) {
              c.bias = {2, 2, 3, 5};
            }),
      small("bias over heads and rows",
            [](C& c) {
              c.bias = {2, 1, 1, 5};
            }),
      small("bias that hides",
            [](C& c) {
              c.bias = {3, 5}, c.bias_hides = true, c.sinks = true;
            }),
      small("slopes", [](C& c) { c.slopes = {2}; }),
      small("slopes by sequence",
            [](C& c) {
              c.slopes = {2, 2}, c.causal = true;
            }),
      small("table", [](C& c) { c.buckets = 4, c.max_distance = 3; }),
      small("causal table", [](C& c) { c.buckets = 4, c.bidirectional = false, c.causal = true; }),
      small("rows that see nothing", [](C& c) { c.causal = true, c.offset = -2, c.sinks = true; }),
      small("packed",
            [](C& c) {
              c.query_offsets = {0, 2, 2, 5}, c.key_offsets = {0, 3, 4, 7};
              c.causal = true, c.dropout = 0.2f, c.slopes = {3, 2};
            }),
      small("window, global, lengths",
            [](C& c) {
              c.left = 1, c.right = 0, c.global = {2, 5}, c.key_lengths = {4, 0};
              c.query_lengths = {3, 2}, c.allowed = {1, 2, 3, 5}, c.sinks = true;
            }),
  };
}

TEST(AttentionReference, GradientsMatchFiniteDifferences) {
  for (const AttentionCase& c : gradient_cases()) {
    SCOPED_TRACE(c.name);
    ReferenceProblem p = reference_problem(make_inputs(c, DType::f32));
    const ReferenceResult r = reference_exact(p);
    check_differences("q", p, p.q, r.dq);
    check_differences("k", p, p.k, r.dk);
    check_differences("v", p, p.v, r.dv);
    check_differences("sinks", p, p.sinks, r.dsinks);
    if (p.bias.defined()) check_differences("bias", p, p.bias.values, r.dbias);
    if (p.slopes.defined()) check_differences("slopes", p, p.slopes.values, r.dbias);
    if (!p.table.empty()) check_differences("table", p, p.table, r.dbias);
  }
}

TEST(AttentionReference, PlainIsCloseToExact) {
  for (const AttentionCase& c : gradient_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(c.name + " " + to_string(dtype));
      const ReferenceProblem p = reference_problem(make_inputs(c, dtype));
      const ReferenceResult exact = reference_exact(p), plain = reference_plain(p);
      const double limit = dtype == DType::f32 ? 5e-6 : dtype == DType::f16 ? 1e-2 : 1e-1;
      for (const auto member :
           {&ReferenceResult::out, &ReferenceResult::dq, &ReferenceResult::dk, &ReferenceResult::dv,
            &ReferenceResult::dbias, &ReferenceResult::entropy, &ReferenceResult::score_var}) {
        ASSERT_EQ((exact.*member).size(), (plain.*member).size());
        for (std::size_t i = 0; i < (exact.*member).size(); ++i) {
          EXPECT_NEAR((plain.*member)[i], (exact.*member)[i],
                      limit * (1 + std::abs((exact.*member)[i])));
        }
      }
    }
  }
}

// Equal scores: the mean of the values, lse = score + log n, entropy = log n.
TEST(AttentionReference, EqualScoresGiveTheMean) {
  AttentionCase c = kSmall;
  c.scale = 0.0f;
  const ReferenceProblem p = reference_problem(make_inputs(c, DType::f32));
  const ReferenceResult r = reference_exact(p);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t d = 0; d < 2; ++d) {
      double mean = 0;
      for (std::int64_t j = 0; j < 5; ++j)
        mean += p.v[static_cast<std::size_t>((b * 5 + j) * 2 + d)] / 5;
      for (std::int64_t row = 0; row < 6; ++row) {
        EXPECT_NEAR(r.out[static_cast<std::size_t>((b * 6 + row) * 2 + d)], mean, 1e-12);
      }
    }
  }
  for (const double lse : r.lse) EXPECT_NEAR(lse, std::log(5.0), 1e-12);
  for (const double entropy : r.entropy) EXPECT_NEAR(entropy, std::log(5.0), 1e-12);
  for (const double relative : r.entropy_relative) EXPECT_NEAR(relative, 1, 1e-12);
  for (const double weight : r.top_weight) EXPECT_NEAR(weight, 0.2, 1e-12);
  for (const double received : r.received) EXPECT_NEAR(received, 0.6, 1e-12);
}

// Two keys of scores 0 and log 3 have weights 1/4 and 3/4; a sink of score 0 makes them 1/5, 3/5.
TEST(AttentionReference, TwoKeysByHand) {
  ReferenceProblem p;
  p.heads = p.key_heads = p.head_size = p.value_size = p.q_rows = 1;
  p.k_rows = 2;
  p.sequences = {{.q_rows = 1, .k_rows = 2, .q_length = 1, .k_length = 2, .offset = 1}};
  p.q = {1};
  p.k = {0, std::log(3.0)};
  p.v = {4, 8};
  ReferenceResult r = reference_exact(p);
  EXPECT_NEAR(r.out[0], 7, 1e-12);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-12);
  EXPECT_NEAR(r.entropy[0], -(0.25 * std::log(0.25) + 0.75 * std::log(0.75)), 1e-12);
  EXPECT_NEAR(r.score_mean[0], std::log(3.0) / 2, 1e-12);
  EXPECT_NEAR(r.score_var[0], std::pow(std::log(3.0) / 2, 2), 1e-12);
  EXPECT_EQ(r.top_index[0], 1);
  p.sinks = {0};
  r = reference_exact(p);
  EXPECT_NEAR(r.out[0], 4.0 / 5 + 8 * 3.0 / 5, 1e-12);
  EXPECT_NEAR(r.lse[0], std::log(5.0), 1e-12);
}

TEST(AttentionReference, MaskByHand) {
  ReferenceProblem p;
  p.heads = 1;
  p.q_rows = 4;
  p.k_rows = 6;
  p.sequences = {{.q_rows = 4, .k_rows = 6, .q_length = 4, .k_length = 6, .offset = 2}};
  const auto picture = [&] {
    std::string text;
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t j = 0; j < 6; ++j) text += visible(p, 0, 0, i, j) ? 'x' : '.';
      text += '\n';
    }
    return text;
  };
  p.causal = true;
  EXPECT_EQ(picture(), "xxx...\nxxxx..\nxxxxx.\nxxxxxx\n");
  p.left = 1;
  EXPECT_EQ(picture(), ".xx...\n..xx..\n...xx.\n....xx\n");
  p.causal = false;
  p.right = 1;
  EXPECT_EQ(picture(), ".xxx..\n..xxx.\n...xxx\n....xx\n");
  p.global = {1, 0, 0, 0, 1, 0};  // key 0, and position 4, which is query 2
  EXPECT_EQ(picture(), "xxxxx.\nx.xxx.\nxxxxxx\nx...xx\n");
  p.causal = true;
  EXPECT_EQ(picture(), "xxx...\nx.xx..\nxxxxx.\nx...xx\n");
  p.sequences[0].k_length = 5;
  p.sequences[0].q_length = 3;
  EXPECT_EQ(picture(), "xxx...\nx.xx..\nxxxxx.\n......\n");
}

// The published table for 32 buckets and distances up to 128, and the rule from its logarithms.
TEST(RelativeBucket, IsWhatT5Defines) {
  const std::int64_t both[] = {8, 12, 16, 23, 32, 46, 64, 91};
  const std::int64_t before[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (std::int64_t distance = 0; distance < 300; ++distance) {
    const auto reached = [&](auto& starts, std::int64_t exact) {
      if (distance < exact) return distance;
      std::int64_t bucket = exact - 1;
      for (const std::int64_t start : starts) bucket += distance >= start ? 1 : 0;
      return bucket;
    };
    EXPECT_EQ(relative_bucket(-distance, 32, true, 128), reached(both, 8)) << distance;
    EXPECT_EQ(relative_bucket(distance, 32, true, 128), reached(both, 8) + (distance > 0 ? 16 : 0));
    EXPECT_EQ(relative_bucket(-distance, 32, false, 128), reached(before, 16)) << distance;
    EXPECT_EQ(relative_bucket(distance, 32, false, 128), 0) << distance;
  }
}

TEST(RelativeBucket, HoldsForOtherSizes) {
  for (const std::int64_t buckets : {4, 6, 8, 20, 32, 64}) {
    for (const std::int64_t max_distance : {40, 100, 128, 1000}) {
      for (const bool both : {false, true}) {
        std::int64_t last = 0;
        for (std::int64_t distance = 0; distance < 1200; ++distance) {
          const std::int64_t bucket = relative_bucket(-distance, buckets, both, max_distance);
          EXPECT_EQ(bucket, t5_bucket(-distance, buckets, both, max_distance))
              << distance << " of " << buckets << " up to " << max_distance;
          EXPECT_GE(bucket, last);
          EXPECT_LT(bucket, buckets);
          last = bucket;
        }
        EXPECT_EQ(relative_bucket(7, buckets, both, max_distance),
                  t5_bucket(7, buckets, both, max_distance));
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
