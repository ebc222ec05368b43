// The weights themselves, by heads, by rows and pooled into blocks.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionWeightsOf : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionWeightsOf, ::testing::ValuesIn(kFloats), dtype_name);

// What `selection` asks for, from all the weights [B, H, Sq, Sk], summed as Real.
template <class Real>
std::vector<double> selected(const std::vector<double>& weights, const AttentionCase& c,
                             const WeightsSelection& selection) {
  const auto all = [](std::vector<std::int64_t> chosen, std::int64_t count) {
    if (chosen.empty()) {
      for (std::int64_t n = 0; n < count; ++n) chosen.push_back(n);
    }
    return chosen;
  };
  const std::vector<std::int64_t> heads = all(selection.heads, c.heads);
  const std::vector<std::int64_t> rows = all(selection.rows, c.queries);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<double> result;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (const std::int64_t h : heads) {
      for (std::int64_t i = 0; i < count; i += selection.pool_rows) {
        const std::int64_t i_end = std::min(i + selection.pool_rows, count);
        for (std::int64_t j = 0; j < c.keys; j += selection.pool_keys) {
          Real sum = 0;
          for (std::int64_t row = i; row < i_end; ++row) {
            const std::int64_t first =
                ((b * c.heads + h) * c.queries + rows[static_cast<std::size_t>(row)]) * c.keys;
            for (std::int64_t key = j; key < std::min(j + selection.pool_keys, c.keys); ++key) {
              sum += static_cast<Real>(weights[static_cast<std::size_t>(first + key)]);
            }
          }
          result.push_back(sum / static_cast<Real>(i_end - i));
        }
      }
    }
  }
  return result;
}

void check_weights(const AttentionCase& c, DType dtype) {
  const WeightsSelection selections[] = {
      {},
      {.heads = {1}},
      {.heads = {3, 0, 3}},
      {.rows = {0}},
      {.rows = {c.queries - 1, 2, 7, 7}},
      {.heads = {2, 1}, .rows = {5, 4, 3, 2, 1}},
      {.pool_rows = 4},
      {.pool_keys = 7},
      {.pool_rows = 8, .pool_keys = 16},
      {.heads = {0, 2}, .rows = {1, 3, 5, 7, 9}, .pool_rows = 2, .pool_keys = 5},
      {.pool_rows = 1000, .pool_keys = 1000},
  };
  SCOPED_TRACE(c.name + " " + to_string(dtype));
  const AttentionInputs in = make_inputs(c, dtype);
  const ReferenceProblem p = reference_problem(in);
  const ReferenceResult exact = reference_exact(p), plain = reference_plain(p);
  for_each_target([&] {
    for (std::size_t n = 0; n < std::size(selections); ++n) {
      SCOPED_TRACE("selection " + std::to_string(n));
      const std::vector<double> expected = selected<double>(exact.weights, c, selections[n]);
      const Tensor ours = run_weights(in, selections[n]);
      EXPECT_EQ(ours.dtype(), DType::f32);
      expect_close("weights", ours, expected,
                   limit_of(expected, selected<float>(plain.weights, c, selections[n])));
    }
  });
}

TEST_P(AttentionWeightsOf, EverySelection) {
  AttentionCase c{.name = "plain", .heads = 4, .queries = 21, .keys = 45, .head_size = 24};
  check_weights(c, GetParam());
  c.name = "causal, strides";
  c.causal = true;
  c.layout = Layout::heads_inside;
  check_weights(c, GetParam());
  c.name = "window, lengths, sinks, softcap";
  c.causal = false;
  c.left = 6;
  c.right = 3;
  c.key_lengths = {20, 45};
  c.query_lengths = {21, 13};
  c.sinks = true;
  c.softcap = 2;
  check_weights(c, GetParam());
}

TEST_P(AttentionWeightsOf, EveryBias) {
  AttentionCase c{.name = "bias", .heads = 4, .queries = 21, .keys = 45, .head_size = 24};
  c.bias = {2, 4, 21, 45};
  c.bias_hides = true;
  check_weights(c, GetParam());
  c.bias = {};
  c.name = "slopes";
  c.slopes = {4};
  check_weights(c, GetParam());
  c.slopes = {};
  c.name = "table, allowed";
  c.buckets = 16;
  c.allowed = {2, 1, 21, 45};
  check_weights(c, GetParam());
}

TEST_P(AttentionWeightsOf, SeveralTilesAndNoKeys) {
  AttentionCase c{.name = "tiles", .batch = 1, .heads = 4, .queries = 150, .keys = 280};
  c.causal = true;
  check_weights(c, GetParam());
  c.name = "rows that see nothing";
  c.offset = -60;
  c.sinks = true;
  check_weights(c, GetParam());
  c.name = "no keys";
  c.keys = 0;
  check_weights(c, GetParam());
}

// Weights are those before dropout: looking at them tells what was meant.
TEST(AttentionWeightsBefore, Dropout) {
  AttentionInputs in = make_inputs({.queries = 9, .keys = 33}, DType::f32);
  for_each_target([&] {
    in.options.dropout = 0;
    const Tensor without = run_weights(in);
    in.options.dropout = 0.5f;
    expect_same_bits("weights", run_weights(in), without);
  });
}

}  // namespace
}  // namespace qkv::test
