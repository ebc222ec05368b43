// Attention by the matrix instructions of any GPU since Ampere: that it is taken where a Hopper
// GPU's own kernels are not, for f32 always, and what it makes of biases, masks of pairs, dropout,
// softcap and sinks over several tiles. The CPU computes the same cases.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

using Case = AttentionCase;

class AttentionMma : public AttentionOfGpuTiles {
 protected:
  // Each in kernels for heads of 64, 128 and 256, the latter two with padding, of f32 of 32, 64, 96
  // and 128; with and without statistics, which are kernels of their own.
  template <class Change>
  void check(const std::string& name, Change change, Pass pass = Pass::both) {
    const bool is_f32 = GetParam() == DType::f32;
    for (const std::int64_t size :
         is_f32 ? std::vector{28, 64, 96, 104} : std::vector{64, 104, 184}) {
      Case c{.name = name, .batch = 2, .queries = 150, .keys = 205, .head_size = size};
      change(c);
      check_attention(c, GetParam(), pass);
      c.name += ", statistics";
      c.statistics = Statistics::all;
      check_attention(c, GetParam(), Pass::forward);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionMma, ::testing::ValuesIn(kFloats), dtype_name);

TEST_P(AttentionMma, BiasTensors) {
  check("tensor", [](Case& c) { c.bias = {1, 2, 150, 205}, c.causal = true; });
  check("of every sequence", [](Case& c) { c.bias = {2, 2, 150, 205}; });
  check("one for all", [](Case& c) { c.bias = {1, 1, 150, 205}, c.heads = 4; });
  check("of keys", [](Case& c) { c.bias = {2, 1, 1, 205}; });
  check("of rows", [](Case& c) { c.bias = {1, 2, 150, 1}; });
  check("of even rows", [](Case& c) { c.keys = 206, c.bias = {1, 2, 150, 206}; });
  check("f32", [](Case& c) { c.bias = {1, 2, 150, 205}, c.bias_dtype = DType::f32; });
  check("that hides", [](Case& c) { c.bias = {2, 2, 150, 205}, c.bias_hides = true; });
  check("in aligned rows", [](Case& c) { c.keys = 208, c.bias = {2, 2, 150, 208}; });
  check("without gradient", [](Case& c) { c.bias = {1, 2, 150, 205}, c.bias_gradient = false; });
}

TEST_P(AttentionMma, BiasOfDistances) {
  check("slopes", [](Case& c) { c.slopes = {2}, c.causal = true; });
  check("slopes of sequences", [](Case& c) { c.slopes = {2, 2}, c.offset = 17; });
  check("table", [](Case& c) { c.buckets = 32, c.max_distance = 128; });
  check("table of one direction",
        [](Case& c) { c.buckets = 16, c.bidirectional = false, c.causal = true; });
  check("large table", [](Case& c) { c.buckets = 80, c.max_distance = 60; });
}

TEST_P(AttentionMma, MasksOfPairs) {
  check("pairs", [](Case& c) { c.allowed = {1, 1, 150, 205}; });
  check("pairs of heads", [](Case& c) { c.allowed = {2, 2, 150, 205}, c.causal = true; });
  check("pairs in even rows", [](Case& c) { c.keys = 206, c.allowed = {1, 1, 150, 206}; });
  check("keys", [](Case& c) { c.allowed = {2, 1, 1, 205}; });
  check("pairs, sinks", [](Case& c) { c.allowed = {1, 1, 150, 205}, c.sinks = true; });
}

TEST_P(AttentionMma, Dropout) {
  check("dropout", [](Case& c) { c.dropout = 0.3f; });
  check("in a window", [](Case& c) { c.dropout = 0.1f, c.left = 21, c.right = 9, c.offset = 30; });
  check("heads share keys", [](Case& c) { c.dropout = 0.2f, c.heads = 6, c.causal = true; });
  check("and a bias", [](Case& c) { c.dropout = 0.2f, c.bias = {1, 2, 150, 205}; });
  check("and pairs", [](Case& c) { c.dropout = 0.2f, c.allowed = {1, 1, 150, 205}; });
}

TEST_P(AttentionMma, SoftcapAndSinks) {
  check("softcap", [](Case& c) { c.softcap = 1.5f, c.causal = true; });
  check("softcap, bias", [](Case& c) { c.softcap = 1.5f, c.bias = {1, 2, 150, 205}; });
  check("softcap, table", [](Case& c) { c.softcap = 1.5f, c.buckets = 32; });
  check("sinks", [](Case& c) { c.sinks = true, c.left = 40, c.causal = true, c.dlse = true; });
  check("lengths", [](Case& c) {
    c.bias = {1, 2, 150, 205}, c.key_lengths = {67, 205}, c.query_lengths = {150, 129};
  });
  check("packed", [](Case& c) {
    c.query_offsets = {0, 9, 10, 170, 170}, c.key_offsets = {0, 12, 12, 240, 250};
    c.causal = true, c.slopes = {2}, c.dropout = 0.1f;
  });
}

// Heads of Gemma, and keys longer than values.
TEST_P(AttentionMma, LargeHeads) {
  const auto check_size = [&](std::int64_t size, std::int64_t value_size) {
    for (const float softcap : {0.0f, 1.5f}) {
      check_attention({.name = std::to_string(size) + " and " + std::to_string(value_size),
                       .heads = 4,
                       .queries = 150,
                       .keys = 205,
                       .head_size = size,
                       .value_size = value_size,
                       .causal = true,
                       .offset = 40,
                       .slopes = {4},
                       .softcap = softcap,
                       .dropout = 0.1f,
                       .dlse = true},
                      GetParam());
    }
  };
  check_size(256, 256);
  check_size(192, 128);
  check_size(64, 256);
}

// What is not asked for is not made, and changes nothing else.
TEST_P(AttentionMma, SomeStatistics) {
  using enum Statistics;
  for (const Statistics wanted :
       {max_logit, score_moments, entropy, saturation, top_weight, received,
        max_logit | score_moments | entropy | saturation, entropy | received}) {
    check_attention({.name = "statistics " + std::to_string(static_cast<int>(wanted)),
                     .queries = 150,
                     .keys = 208,
                     .head_size = 64,
                     .allowed = {2, 2, 150, 208},
                     .bias = {1, 2, 150, 208},
                     .softcap = 3,
                     .dropout = 0.1f,
                     .sinks = true,
                     .statistics = wanted},
                    GetParam(), Pass::forward);
  }
}

// Rows of an additive mask have an lse near its largest number, in which that of scores is lost.
TEST_P(AttentionMma, RowsUnderALargeBias) {
  check("large", [](Case& c) { c.bias = {1, 2, 150, 205}, c.bias_shift = -3e4f; });
}

TEST_P(AttentionMma, IsTakenOnAGpu) {
  if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
  const auto kernels = [&](auto&& change) {
    Case c{.queries = 150, .keys = 205, .head_size = 64};
    change(c);
    const AttentionInputs in = make_inputs(c, GetParam());
    AttentionOptions options = in.options;
    for (Tensor* x : {&options.bias.values, &options.bias.slopes, &options.bias.table,
                      &options.mask.allowed_pairs, &options.sinks}) {
      *x = on_device(*x, kGpu);
    }
    return attention_kernels(on_device(in.q, kGpu), on_device(in.k, kGpu), on_device(in.v, kGpu),
                             options);
  };
  const std::string best = kernels([](Case&) {}).forward;  // "sm90" on a Hopper GPU
  const auto expect = [&](const std::string& forward, const std::string& backward, const char* what,
                          auto&& change) {
    const AttentionKernels chosen = kernels(change);
    EXPECT_EQ(chosen.forward, forward) << what;
    EXPECT_EQ(chosen.backward, backward) << what;
  };
  expect("mma", "mma", "bias", [](Case& c) { c.bias = {1, 2, 150, 205}; });
  expect("mma", "mma", "pairs", [](Case& c) { c.allowed = {1, 1, 150, 205}; });
  expect(best, best, "aligned bias", [](Case& c) { c.keys = 208, c.bias = {1, 2, 150, 208}; });
  expect(best, best, "aligned pairs", [](Case& c) { c.keys = 208, c.allowed = {1, 1, 150, 208}; });
  expect(best, best, "slopes", [](Case& c) { c.slopes = {2}; });
  expect(best, best, "table", [](Case& c) { c.buckets = 32; });
  expect(best, best, "dropout", [](Case& c) { c.dropout = 0.1f; });
  expect(best, best, "softcap", [](Case& c) { c.softcap = 2; });
  expect("mma", "mma", "both", [](Case& c) { c.dropout = 0.1f, c.slopes = {2}; });
  expect("mma", "mma", "values of another size", [](Case& c) { c.value_size = 32; });
  const bool is_f32 = GetParam() == DType::f32;
  const std::int64_t most = is_f32 ? 128 : 256;
  expect("mma", "mma", "a large head", [&](Case& c) { c.head_size = most, c.slopes = {2}; });
  expect("mma", "mma", "a large key",
         [&](Case& c) { c.head_size = most * 3 / 4, c.value_size = most / 2; });
  EXPECT_EQ(kernels([](Case& c) { c.softcap = 2, c.statistics = Statistics::all; }).forward, "mma");
  EXPECT_EQ(kernels([&](Case& c) { c.head_size = most + 8, c.slopes = {2}; }).forward,
            "general: a head size above " + std::to_string(most));
  EXPECT_EQ(kernels([](Case& c) { c.head_size = 58; }).forward,
            is_f32 ? "general: a head size that is no multiple of 4"
                   : "general: a head size that is no multiple of 8");
}

// NaN in a value reaches the rows that see its key, by the mask of pairs, and no others.
TEST_P(AttentionMma, NanReachesExactlyWhoSeesIt) {
  constexpr std::int64_t kRows = 210, kAt = 105;
  for_each_target([&] {
    const Case c{.batch = 1,
                 .heads = 1,
                 .key_heads = 1,
                 .queries = kRows,
                 .keys = kRows,
                 .head_size = 64,
                 .allowed = {1, 1, kRows, kRows}};
    const AttentionInputs in = make_inputs(c, GetParam());
    bool* const allowed = in.options.mask.allowed_pairs.data<bool>();
    const auto sees = [](std::int64_t row) { return row % 3 == 0; };
    for (std::int64_t i = 0; i < kRows; ++i) allowed[i * kRows + kAt] = sees(i);
    const AttentionRun clean = run_attention(in);
    std::vector<float> values = to(in.v, DType::f32).to_vector<float>();
    std::fill_n(values.begin() + kAt * 64, 64, std::numeric_limits<float>::quiet_NaN());
    AttentionInputs poisoned = in;
    poisoned.v = to(Tensor::from(values, in.v.shape()), GetParam());
    const AttentionRun run = run_attention(poisoned);
    const auto expect_felt = [&](const char* what, const Tensor& a, const Tensor& b, double apart) {
      const std::vector<double> before = values_of(a), after = values_of(b);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / 64;
        const bool fine =
            sees(row) ? std::isnan(after[i]) : std::abs(before[i] - after[i]) <= apart;
        ASSERT_TRUE(fine) << what << " row " << row << ": " << before[i] << " became " << after[i];
      }
    };
    expect_felt("out", clean.forward.out, run.forward.out, 0);
    expect_felt("dq", clean.grads.dq, run.grads.dq, GetParam() == DType::f32 ? 0 : 2e-2);
  });
}

// The same bits again and again.
TEST_P(AttentionMma, HasOneOrder) {
  for_each_target([&] {
    const AttentionInputs in = make_inputs({.queries = 300,
                                            .keys = 300,
                                            .head_size = 64,
                                            .causal = true,
                                            .bias = {1, 2, 300, 300},
                                            .dropout = 0.1f,
                                            .sinks = true},
                                           GetParam());
    expect_same_bits(run_attention(in), run_attention(in));
  });
}

}  // namespace
}  // namespace qkv::test
