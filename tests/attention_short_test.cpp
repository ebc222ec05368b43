// Sequences so short, in head sizes so usual, that a GPU has kernels of its own for them.
#include <gtest/gtest.h>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionShort : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionShort, ::testing::ValuesIn(kFloats), dtype_name);

struct Lengths {
  std::int64_t queries, keys;
};

TEST_P(AttentionShort, AnyLengths) {
  for (const std::int64_t size : {32, 64, 128}) {
    for (const auto& [queries, keys] : {Lengths{8, 8}, Lengths{9, 16}, Lengths{16, 17},
                                        Lengths{33, 31}, Lengths{64, 64}, Lengths{20, 63}}) {
      for (const bool causal : {false, true}) {
        check_attention({.name = "short",
                         .heads = 3,
                         .key_heads = 3,
                         .queries = queries,
                         .keys = keys,
                         .head_size = size,
                         .layout = causal ? Layout::heads_inside : Layout::row_major,
                         .causal = causal,
                         .statistics = causal ? kRowStatistics : Statistics::none,
                         .dlse = causal},
                        GetParam());
      }
    }
  }
}

TEST_P(AttentionShort, AnyMask) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    for (const std::int64_t size : {32, 64}) {
      C c{.name = name, .batch = 3, .queries = 19, .keys = 23, .head_size = size};
      change(c);
      check_attention(c, GetParam());
      if (c.softcap > 0) continue;  // a kernel of its own on a GPU
      c.statistics = kRowStatistics;
      check_attention(c, GetParam(), Pass::forward);
    }
  };
  check("lengths", [](C& c) { c.key_lengths = {7, 0, 23}, c.query_lengths = {19, 5, 0}; });
  check("causal lengths", [](C& c) { c.key_lengths = {7, 1, 23}, c.causal = true; });
  check("window", [](C& c) { c.left = 3, c.right = 2, c.offset = 5; });
  check("offset", [](C& c) { c.causal = true, c.offset = -4; });
  check("allowed", [](C& c) { c.allowed = {3, 2, 19, 23}; });
  check("global", [](C& c) { c.left = c.right = 1, c.global = {3, 23}; });
  check("global first", [](C& c) { c.left = c.right = 1, c.global_first = 2; });
  check("softcap", [](C& c) { c.softcap = 1.5f, c.scale = 0.7f; });
  check("dropout", [](C& c) { c.dropout = 0.3f; });
  check("long dropout", [](C& c) { c.dropout = 0.3f, c.queries = 90, c.keys = 128; });
  check("packed", [](C& c) {
    c.query_offsets = {0, 9, 10, 30}, c.key_offsets = {0, 12, 12, 40}, c.causal = true;
  });
  // Heads without rows, and of one to four warps, side by side.
  check("packed, some empty", [](C& c) {
    c.query_offsets = {0, 0, 33, 97, 98, 98, 115}, c.key_offsets = {0, 5, 40, 104, 110, 130, 150};
  });
}

}  // namespace
}  // namespace qkv::test
