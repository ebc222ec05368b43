// One to four queries against a long cache, where keys are split over threads.
#include <gtest/gtest.h>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionDecode : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionDecode, ::testing::ValuesIn(kFloats), dtype_name);

TEST_P(AttentionDecode, LongCache) {
  for (std::int64_t queries = 1; queries <= 4; ++queries) {
    check_attention({.name = "long cache",
                     .batch = 1,
                     .heads = 8,
                     .key_heads = 2,
                     .queries = queries,
                     .keys = 4096,
                     .head_size = 64,
                     .causal = true},
                    GetParam(), Pass::forward);
  }
  check_attention({.name = "head size 128",
                   .batch = 1,
                   .heads = 4,
                   .key_heads = 1,
                   .queries = 1,
                   .keys = 4096,
                   .head_size = 128,
                   .layout = Layout::heads_inside},
                  GetParam(), Pass::forward);
}

TEST_P(AttentionDecode, LongCacheBackward) {
  for (const std::int64_t queries : {1, 3}) {
    check_attention({.name = "long cache",
                     .batch = 1,
                     .heads = 4,
                     .key_heads = 2,
                     .queries = queries,
                     .keys = 4096,
                     .head_size = 32,
                     .causal = true,
                     .dlse = true},
                    GetParam());
  }
}

// A cache longer than what it holds, one length and one position per sequence.
TEST_P(AttentionDecode, EveryOption) {
  using C = AttentionCase;
  const C base{.batch = 3, .heads = 6, .key_heads = 2, .queries = 1, .keys = 1500, .head_size = 40};
  const auto check = [&](std::string name, auto&& change) {
    for (const std::int64_t queries : {1, 2}) {
      C c = base;
      c.name = name;
      c.queries = queries;
      change(c);
      check_attention(c, GetParam());
    }
  };
  check("lengths", [](C& c) { c.key_lengths = {1500, 1, 700}, c.causal = true; });
  check("a length of 0", [](C& c) {
    c.key_lengths = {0, 1499, 3}, c.statistics = Statistics::all;
  });
  check("window", [](C& c) { c.causal = true, c.left = 300; });
  check("slopes", [](C& c) { c.causal = true, c.slopes = {6}; });
  check("table", [](C& c) { c.buckets = 32, c.max_distance = 128; });
  check("bias", [](C& c) { c.bias = {3, 1, 1, 1500}, c.bias_hides = true; });
  check("allowed", [](C& c) { c.allowed = {3, 1, 1, 1500}; });
  check("softcap, sinks", [](C& c) { c.softcap = 4, c.sinks = true; });
  check("dropout", [](C& c) { c.dropout = 0.2f; });
  check("statistics", [](C& c) { c.statistics = Statistics::all, c.dlse = c.dentropy = true; });
  check("positions", [](C& c) { c.causal = true, c.offset_per_sequence = {1400, 2, 99}; });
  check("very negative scores", [](C& c) { c.bias = {1}, c.bias_shift = -3e4f, c.dlse = true; });
}

// Lengths around every way of splitting the keys.
TEST_P(AttentionDecode, SplitEdges) {
  for (const std::int64_t keys : {1,   2,   31,  63,  64,   65,   127,  128,  129,  255,  256,
                                  257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 3001}) {
    check_attention({.name = "split",
                     .batch = 1,
                     .heads = 4,
                     .key_heads = 1,
                     .queries = 1,
                     .keys = keys,
                     .head_size = 24,
                     .statistics = Statistics::all},
                    GetParam(), Pass::forward);
  }
}

// Many heads make larger pieces, of a size that each sequence has for itself.
TEST_P(AttentionDecode, SplitEdgesOfManyHeads) {
  for (const int keys : {1000, 1023, 1024, 1025, 2047, 2048, 2049, 3001}) {
    check_attention({.name = "split",
                     .batch = 2,
                     .heads = 16,
                     .key_heads = 16,
                     .queries = 1,
                     .keys = keys,
                     .head_size = 16,
                     .key_lengths = {keys, 700},
                     .statistics = Statistics::all},
                    GetParam(), Pass::forward);
  }
}

}  // namespace
}  // namespace qkv::test
