// What a call can also tell. Every combination of options is tested with statistics elsewhere
// (attention_combinations_test); here is what is particular to them.
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class AttentionStatisticsOf : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionStatisticsOf, ::testing::ValuesIn(kFloats), dtype_name);

// Each asked for alone, and all together, over lengths of one tile and of several.
TEST_P(AttentionStatisticsOf, EachAlone) {
  for (std::uint32_t bits = 0; bits < 64; bits = bits == 0 ? 1 : bits * 2) {
    for (const std::int64_t length : {1, 13, 64, 260}) {
      check_attention({.name = "statistics " + std::to_string(bits),
                       .batch = 1,
                       .queries = length,
                       .keys = length,
                       .causal = true,
                       .statistics = static_cast<Statistics>(bits)},
                      GetParam(), Pass::forward);
    }
  }
  for (const std::int64_t length : {1, 13, 64, 260, 515}) {
    check_attention({.name = "all statistics",
                     .batch = 1,
                     .key_heads = 1,
                     .queries = length,
                     .keys = length + 9,
                     .statistics = Statistics::all},
                    GetParam(), Pass::forward);
  }
}

// Over many tiles, whole ones and cut ones, in the head sizes that a GPU has fast kernels for.
TEST_P(AttentionStatisticsOf, OverManyTiles) {
  using C = AttentionCase;
  for (const std::int64_t size : {64, 80, 128, 160, 256}) {
    const auto check = [&](std::string name, auto&& change) {
      C c{.name = name,
          .batch = 1,
          .key_heads = 1,
          .queries = 300,
          .keys = 410,
          .head_size = size,
          .statistics = kRowStatistics};
      change(c);
      check_attention(c, GetParam(), Pass::forward);
      c.name += ", the largest alone";
      c.statistics = Statistics::max_logit;
      check_attention(c, GetParam(), Pass::forward);
      c.name = name + ", saturation alone";
      c.statistics = Statistics::saturation;
      check_attention(c, GetParam(), Pass::forward);
      c.name = name + ", sharpness alone";  // no sums of scores
      c.statistics = Statistics::entropy | Statistics::saturation;
      check_attention(c, GetParam(), Pass::forward);
    };
    check("full", [](C&) {});
    check("causal", [](C& c) { c.causal = true, c.layout = Layout::heads_inside; });
    if (size != 64) continue;
    check("window", [](C& c) { c.left = 150, c.right = 40; });
    check("sharp", [](C& c) { c.scale = 3.0f, c.causal = true; });
    check("lengths", [](C& c) {
      c.batch = 3, c.key_lengths = {410, 0, 129}, c.query_lengths = {7, 300, 200};
    });
    check("packed", [](C& c) {
      c.query_offsets = {0, 140, 141, 300}, c.key_offsets = {0, 200, 200, 390}, c.causal = true;
    });
  }
}

// Sharp, flat and mixed rows: from saturated everywhere to nowhere.
TEST_P(AttentionStatisticsOf, FromFlatToSharp) {
  for (const float deviation : {0.0f, 0.1f, 1.0f, 3.0f, 8.0f}) {
    check_attention({.name = "deviation " + std::to_string(deviation),
                     .queries = 70,
                     .keys = 80,
                     .head_size = 32,
                     .scale = 1.0f,
                     .statistics = Statistics::all,
                     .deviation = deviation},
                    GetParam(), Pass::forward);
  }
}

// The share of sharp rows without the weights it is made of, in the lengths of every kernel: of few
// queries, of one warp, of several, of many tiles, and with what a report of training asks besides.
TEST_P(AttentionStatisticsOf, SaturationAlone) {
  for (const std::int64_t length : {3, 12, 40, 200}) {
    for (const Statistics wanted :
         {Statistics::saturation, Statistics::saturation | Statistics::max_logit,
          Statistics::saturation | Statistics::max_logit | Statistics::score_moments |
              Statistics::entropy}) {
      for (const bool sinks : {false, true}) {
        check_attention({.name = "length " + std::to_string(length),
                         .batch = 3,
                         .queries = length,
                         .keys = length + 4,
                         .head_size = 64,
                         .scale = 0.5f,
                         .causal = true,
                         .sinks = sinks,
                         .statistics = wanted,
                         .deviation = 2.0f},
                        GetParam(), Pass::forward);
      }
    }
  }
}

// Scores far from 0: a variance computed as a difference of large squares would be lost.
TEST_P(AttentionStatisticsOf, MomentsOfShiftedScores) {
  for (const float shift : {100.0f, -1000.0f}) {
    check_attention({.name = "shift",
                     .queries = 70,
                     .keys = 150,
                     .head_size = 32,
                     .bias = {2, 2, 70, 150},
                     .bias_dtype = DType::f32,
                     .bias_shift = shift,
                     .statistics = Statistics::score_moments},
                    GetParam(), Pass::forward);
  }
}

TEST_P(AttentionStatisticsOf, RowsThatSeeNothingAreLeftOut) {
  check_attention({.name = "some rows",
                   .queries = 40,
                   .keys = 30,
                   .causal = true,
                   .statistics = Statistics::all},
                  GetParam());
  check_attention({.name = "all rows of one sequence",
                   .queries = 40,
                   .keys = 30,
                   .key_lengths = {0, 30},
                   .sinks = true,
                   .statistics = Statistics::all},
                  GetParam());
  check_attention({.name = "one key each",
                   .queries = 30,
                   .keys = 30,
                   .left = 0,
                   .right = 0,
                   .statistics = Statistics::all,
                   .dentropy = true},
                  GetParam());
}

// Of keys that are all the same, the largest weight is the first that a row sees: within a tile,
// and in the tiles after it.
TEST_P(AttentionStatisticsOf, TheFirstOfEqualScoresIsTheTop) {
  if (test_device() != kCpu) GTEST_SKIP() << "of equal scores a GPU may take any";
  const std::int64_t size = 300;
  const auto filled = [&](double x) { return Tensor::full({1, 2, size, 32}, x, {GetParam()}); };
  const auto tops = [&](const AttentionOptions& options) {
    return values_of(
        attention_forward(filled(1), filled(0.5), filled(1), options).statistics.top_index);
  };
  for_each_target([&] {
    const std::vector<double> first = tops({.statistics = Statistics::top_weight});
    const std::vector<double> seen = tops({.mask = {.left = 7}, .statistics = Statistics::all});
    for (std::int64_t i = 0; i < 2 * size; ++i) {
      EXPECT_EQ(first[static_cast<std::size_t>(i)], 0) << "row " << i;
      EXPECT_EQ(seen[static_cast<std::size_t>(i)], std::max<std::int64_t>(i % size - 7, 0))
          << "row " << i;
    }
  });
}

// What was summed for the entropy before the one score came that counts is forgotten, however far
// below it was.
TEST_P(AttentionStatisticsOf, EntropyForgetsWhatIsFarBelow) {
  constexpr std::int64_t kKeys = 300, kSize = 32;
  const float low = GetParam() == DType::f16 ? -6e4f : -1e38f;
  for (const std::int64_t seen : {std::int64_t{0}, kKeys - 1}) {
    std::vector<float> of_q(40 * kSize), of_k(kKeys * kSize);
    for (std::size_t i = 0; i < of_q.size(); i += kSize) of_q[i] = 1;
    for (std::size_t i = 0; i < of_k.size(); i += kSize) of_k[i] = low;
    of_k[static_cast<std::size_t>(seen * kSize)] = 0;
    const Tensor q = to(Tensor::from(of_q, {1, 1, 40, kSize}), GetParam());
    const Tensor k = to(Tensor::from(of_k, {1, 1, kKeys, kSize}), GetParam());
    using enum Statistics;
    // On a GPU each of these is another kernel's.
    for (const Statistics wanted : {all, entropy | top_weight, entropy}) {
      for_each_target([&] {
        const AttentionStatistics s =
            attention_forward(on_device(q, test_device()), on_device(k, test_device()),
                              on_device(k, test_device()), {.statistics = wanted})
                .statistics;
        for (const double x : values_of(s.entropy)) EXPECT_EQ(x, 0);
        if (!has(wanted, top_weight)) return;
        for (const double x : values_of(s.top_weight)) EXPECT_EQ(x, 1);
      });
    }
  }
}

// Looking changes nothing that is looked at.
TEST_P(AttentionStatisticsOf, DoNotChangeTheResult) {
  for (const std::int64_t queries : {1, 3, 40, 200}) {
    for (const bool causal : {false, true}) {
      for (const float softcap : {0.0f, 4.0f}) {
        AttentionInputs in = make_inputs({.heads = 4,
                                          .queries = queries,
                                          .keys = 210,
                                          .head_size = 40,
                                          .causal = causal,
                                          .softcap = softcap},
                                         GetParam());
        SCOPED_TRACE("Sq " + std::to_string(queries) + (causal ? " causal " : " ") +
                     to_string(GetParam()));
        for_each_target([&] {
          in.options.statistics = Statistics::none;
          const AttentionForward off = run_attention(in, Pass::forward).forward;
          in.options.statistics = Statistics::all;
          const AttentionForward on = run_attention(in, Pass::forward).forward;
          // On a GPU they may come from another kernel, which check_attention holds to the rule.
          if (test_device() != kCpu) return;
          expect_same_bits("out", on.out, off.out);
          expect_same_bits("lse", on.lse, off.lse);
        });
      }
    }
  }
}

// Relations that hold whatever the scores are.
TEST_P(AttentionStatisticsOf, Agree) {
  const AttentionInputs in = make_inputs(
      {.queries = 60, .keys = 90, .head_size = 32, .causal = true, .statistics = Statistics::all},
      GetParam());
  for_each_target([&] {
    const AttentionForward f = run_attention(in, Pass::forward).forward;
    double received = 0;
    for (const double x : values_of(f.statistics.received)) received += x;
    EXPECT_NEAR(received, 2 * 2 * 60, 1e-3);  // every row gives away exactly 1
    const std::vector<double> entropy = values_of(f.statistics.entropy);
    for (std::size_t row = 0; row < entropy.size(); ++row) {
      const auto visible = static_cast<double>(31 + row % 60);
      EXPECT_GE(entropy[row], -1e-5);
      EXPECT_LE(entropy[row], std::log(visible) + 1e-5);
    }
  });
}

}  // namespace
}  // namespace qkv::test
