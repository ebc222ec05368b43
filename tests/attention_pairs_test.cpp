// Attention with one thing said of pairs, a bias, a mask or dropout, over several tiles: what a
// Hopper GPU's own kernels have of it. The CPU computes the same cases.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

using Case = AttentionCase;

class AttentionPairs : public AttentionOfGpuTiles {
 protected:
  // Alone and beside what makes intervals of keys; heads of 64 and 128, some with padding.
  template <class Change>
  void check(const std::string& name, Change change, Pass pass = Pass::forward) {
    for (const std::int64_t size : {64, 104}) {
      Case c{.name = name, .queries = 200, .keys = 208, .head_size = size};
      change(c);
      check_attention(c, GetParam(), pass);
      c.name += ", causal, shared keys";
      c.heads = 4, c.causal = true;
      check_attention(c, GetParam(), pass);
      c.name += ", window";
      c.left = 70, c.offset = 30;
      check_attention(c, GetParam(), pass);
      c.causal = false, c.left = -1, c.offset = {};
      c.name = name + ", lengths";
      c.key_lengths = {67, 208}, c.query_lengths = {200, 129};
      check_attention(c, GetParam(), pass);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionPairs, ::testing::Values(DType::bf16, DType::f16),
                         dtype_name);

TEST_P(AttentionPairs, BiasOfOneHead) {
  check(
      "one for all",
      [](Case& c) {
        c.bias = {1, 1, 200, 208};
      },
      Pass::both);
}
TEST_P(AttentionPairs, BiasOfSequences) {
  check("of sequences", [](Case& c) { c.bias = {2, 1, 200, 208}; });
}
TEST_P(AttentionPairs, BiasThatHides) {
  check(
      "that hides",
      [](Case& c) {
        c.bias = {1, 1, 200, 208}, c.bias_hides = true;
      },
      Pass::both);
}
TEST_P(AttentionPairs, LargeBias) {
  check(
      "large",
      [](Case& c) {
        c.bias = {1, 1, 200, 208}, c.bias_shift = -3e4f;
      },
      Pass::both);
}
TEST_P(AttentionPairs, Mask) {
  check(
      "mask",
      [](Case& c) {
        c.allowed = {1, 1, 200, 208};
      },
      Pass::both);
  check("mask of sequences", [](Case& c) { c.allowed = {2, 1, 200, 208}; });
}
TEST_P(AttentionPairs, Slopes) {
  check(
      "slopes", [](Case& c) { c.heads = 4, c.key_heads = 2, c.slopes = {4}; }, Pass::both);
  check(
      "slopes of sequences",
      [](Case& c) {
        c.heads = 4, c.slopes = {2, 4};
      },
      Pass::both);
}
TEST_P(AttentionPairs, Table) {
  check(
      "table", [](Case& c) { c.heads = 4, c.buckets = 32, c.max_distance = 128; }, Pass::both);
  check(
      "short table", [](Case& c) { c.heads = 4, c.buckets = 8, c.max_distance = 20; }, Pass::both);
  check(
      "one way",
      [](Case& c) { c.heads = 4, c.buckets = 12, c.max_distance = 40, c.bidirectional = false; },
      Pass::both);
}
TEST_P(AttentionPairs, Softcap) {
  check(
      "softcap", [](Case& c) { c.softcap = 1.5f; }, Pass::both);
  check(
      "large softcap", [](Case& c) { c.softcap = 50, c.scale = 1; }, Pass::both);
}
TEST_P(AttentionPairs, Dropout) {
  check("dropout", [](Case& c) { c.dropout = 0.3f; });
}

TEST_P(AttentionPairs, OfEachHead) {
  for (const std::int64_t size : {64, 128}) {
    check_attention(
        {.name = "bias", .queries = 200, .keys = 208, .head_size = size, .bias = {1, 2, 200, 208}},
        GetParam(), Pass::forward);
    check_attention({.name = "biases",
                     .queries = 200,
                     .keys = 208,
                     .head_size = size,
                     .bias = {2, 2, 200, 208},
                     .bias_hides = true},
                    GetParam());
    check_attention({.name = "mask",
                     .queries = 200,
                     .keys = 208,
                     .head_size = size,
                     .allowed = {2, 2, 200, 208}},
                    GetParam());
  }
}

// One key more or less than tiles have, and rows likewise.
TEST_P(AttentionPairs, AroundTheEdgesOfTiles) {
  for (const std::int64_t keys : {8, 64, 72, 136}) {
    for (const std::int64_t queries : {1, 64, 65, 193}) {
      const auto check_edges = [&](const char* name, auto change) {
        Case c{.name = name,
               .heads = 4,
               .key_heads = 4,
               .queries = queries,
               .keys = keys,
               .head_size = 64};
        change(c);
        check_attention(c, GetParam());
      };
      check_edges("bias", [&](Case& c) { c.bias = {1, 4, queries, keys}; });
      check_edges("mask", [&](Case& c) {
        c.keys = (keys + 15) / 16 * 16, c.allowed = {1, 1, queries, c.keys};
      });
      check_edges("slopes", [&](Case& c) { c.slopes = {4}; });
      check_edges("dropout", [&](Case& c) { c.dropout = 0.2f, c.causal = true; });
    }
  }
}

TEST_P(AttentionPairs, OfPackedSequences) {
  for (const std::int64_t size : {64, 128}) {
    Case c{.name = "packed",
           .heads = 4,
           .head_size = size,
           .query_offsets = {0, 9, 10, 240, 240},
           .key_offsets = {0, 12, 12, 250, 256},
           .causal = true};
    c.slopes = {4};
    check_attention(c, GetParam());
    c.slopes = {}, c.dropout = 0.2f;
    check_attention(c, GetParam(), Pass::forward);
    c.dropout = 0, c.buckets = 32, c.max_distance = 40;
    check_attention(c, GetParam());
  }
}

// What is not finite in a value reaches the rows that see its key, and no others.
TEST_P(AttentionPairs, NanReachesExactlyWhoSeesIt) {
  constexpr std::int64_t kRows = 336, kAt = 105, kSize = 64;
  for_each_target([&] {
    for (const bool by_bias : {false, true}) {
      Case c{.batch = 1,
             .heads = 1,
             .key_heads = 1,
             .queries = kRows,
             .keys = kRows,
             .head_size = kSize};
      (by_bias ? c.bias : c.allowed) = {1, 1, kRows, kRows};
      AttentionInputs in = make_inputs(c, GetParam());
      const auto sees = [](std::int64_t row) { return row % 3 == 0; };
      if (by_bias) {
        std::vector<float> bias = to(in.options.bias.values, DType::f32).to_vector<float>();
        for (std::int64_t i = 0; i < kRows; ++i) {
          if (!sees(i)) bias[i * kRows + kAt] = -std::numeric_limits<float>::infinity();
        }
        in.options.bias.values = to(Tensor::from(bias, in.options.bias.values.shape()), GetParam());
      } else {
        bool* const allowed = in.options.mask.allowed_pairs.data<bool>();
        for (std::int64_t i = 0; i < kRows; ++i) allowed[i * kRows + kAt] = sees(i);
      }
      const AttentionRun clean = run_attention(in);
      for (Tensor* const x : {&in.v, &in.k}) {
        AttentionInputs poisoned = in;
        std::vector<float> values = to(*x, DType::f32).to_vector<float>();
        std::fill_n(values.begin() + kAt * kSize, kSize, std::numeric_limits<float>::quiet_NaN());
        (x == &in.v ? poisoned.v : poisoned.k) = to(Tensor::from(values, x->shape()), GetParam());
        const AttentionRun run = run_attention(poisoned);
        const auto expect_felt = [&](const char* what, const Tensor& was, const Tensor& is,
                                     double apart) {
          const std::vector<double> before = values_of(was), after = values_of(is);
          for (std::size_t i = 0; i < before.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i) / kSize;
            const bool fine =
                sees(row) ? std::isnan(after[i]) : std::abs(before[i] - after[i]) <= apart;
            ASSERT_TRUE(fine) << (by_bias ? "bias, " : "mask, ") << what << " of row " << row
                              << ": " << before[i] << " became " << after[i];
          }
        };
        expect_felt("out", clean.forward.out, run.forward.out, 0);
        expect_felt("dq", clean.grads.dq, run.grads.dq, 2e-2);  // by other kernels
      }
    }
  });
}

TEST_P(AttentionPairs, HasOneOrder) {
  for_each_target([&] {
    const AttentionInputs in =
        make_inputs({.queries = 208, .keys = 208, .head_size = 64, .causal = true, .dropout = 0.1f},
                    GetParam());
    expect_same_bits(run_attention(in), run_attention(in));
  });
}

}  // namespace
}  // namespace qkv::test
