// The same inputs give the same bits, run to run and at any number of threads.
#include <gtest/gtest.h>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionDeterminism : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionDeterminism, ::testing::ValuesIn(kFloats), dtype_name);

void check_bits(const AttentionCase& c, DType dtype, Pass pass = Pass::both) {
  SCOPED_TRACE(c.name + " " + to_string(dtype));
  const AttentionInputs in = make_inputs(c, dtype);
  for_each_target([&] {
    const KeepSettings keep;
    set_num_threads(1);
    const AttentionRun first = run_attention(in, pass);
    for (const int threads : {1, 2, 3, 8, 2}) {
      SCOPED_TRACE(std::to_string(threads) + " threads");
      set_num_threads(threads);
      expect_same_bits(first, run_attention(in, pass));
    }
  });
}

TEST_P(AttentionDeterminism, ForwardAndBackward) {
  const auto all = Statistics::all;
  check_bits({.name = "several tiles", .queries = 200, .keys = 270, .head_size = 32}, GetParam());
  check_bits({.name = "many heads",
              .batch = 1,
              .heads = 37,
              .key_heads = 37,
              .queries = 530,
              .keys = 530,
              .head_size = 8},
             GetParam());
  check_bits({.name = "one head",
              .batch = 1,
              .heads = 1,
              .key_heads = 1,
              .queries = 300,
              .keys = 300,
              .head_size = 64,
              .causal = true,
              .statistics = all},
             GetParam());
  for (const std::int64_t size : {128, 192, 256}) {
    check_bits({.name = "large heads",
                .batch = 1,
                .heads = 3,
                .key_heads = 3,
                .queries = 400,
                .keys = 400,
                .head_size = size,
                .causal = size == 256},
               GetParam());
  }
  check_bits({.name = "shared keys",
              .heads = 8,
              .queries = 90,
              .keys = 130,
              .causal = true,
              .sinks = true,
              .statistics = all,
              .dlse = true,
              .dentropy = true},
             GetParam());
  check_bits({.name = "summed bias",
              .heads = 4,
              .queries = 150,
              .keys = 150,
              .bias = {1, 1, 1, 150},
              .dropout = 0.1f},
             GetParam());
  check_bits({.name = "one number of bias", .heads = 4, .queries = 150, .keys = 150, .bias = {1}},
             GetParam());
  check_bits({.name = "slopes",
              .heads = 4,
              .queries = 150,
              .keys = 150,
              .causal = true,
              .slopes = {4},
              .softcap = 3},
             GetParam());
  check_bits({.name = "table", .heads = 4, .queries = 150, .keys = 150, .buckets = 32}, GetParam());
  check_bits({.name = "window and global",
              .queries = 200,
              .keys = 200,
              .left = 20,
              .right = 4,
              .global = {200},
              .statistics = all},
             GetParam());
  check_bits({.name = "packed",
              .heads = 4,
              .query_offsets = {0, 100, 101, 250, 250, 400},
              .causal = true,
              .statistics = all},
             GetParam());
}

TEST_P(AttentionDeterminism, Decode) {
  for (const std::int64_t queries : {1, 4}) {
    check_bits({.name = "decode",
                .batch = 1,
                .heads = 4,
                .key_heads = 1,
                .queries = queries,
                .keys = 4096,
                .head_size = 32,
                .causal = true,
                .statistics = Statistics::all},
               GetParam());
    check_bits({.name = "decode, many",
                .batch = 3,
                .heads = 16,
                .key_heads = 16,
                .queries = queries,
                .keys = 2100,
                .head_size = 16,
                .key_lengths = {2100, 17, 1024},
                .sinks = true},
               GetParam());
  }
}

TEST_P(AttentionDeterminism, Weights) {
  const AttentionInputs in =
      make_inputs({.heads = 4, .queries = 100, .keys = 170, .causal = true}, GetParam());
  for_each_target([&] {
    const KeepSettings keep;
    set_num_threads(1);
    const WeightsSelection pooled{.pool_rows = 16, .pool_keys = 16};
    const Tensor first = run_weights(in);
    const Tensor blocks = run_weights(in, pooled);
    for (const int threads : {2, 3, 8}) {
      set_num_threads(threads);
      expect_same_bits("weights", first, run_weights(in));
      expect_same_bits("blocks", blocks, run_weights(in, pooled));
    }
  });
}

}  // namespace
}  // namespace qkv::test
