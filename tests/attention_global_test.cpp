// Windows whose first positions are global: on a GPU a call becomes three.
#include <gtest/gtest.h>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionGlobal : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionGlobal, ::testing::ValuesIn(kFloats), dtype_name);

AttentionCase long_case(std::string name) {
  return {.name = std::move(name),
          .queries = 300,
          .keys = 300,
          .head_size = 64,
          .left = 40,
          .right = 30,
          .global_first = 1,
          .dlse = true};
}

TEST_P(AttentionGlobal, AnyNumberOfThem) {
  for (const std::int64_t first : {1, 7, 70, 299, 300, 1000}) {
    for (const bool causal : {false, true}) {
      AttentionCase c = long_case("global first");
      c.global_first = first;
      c.causal = causal;
      c.layout = causal ? Layout::heads_inside : Layout::row_major;
      check_attention(c, GetParam());
    }
  }
}

TEST_P(AttentionGlobal, AnyOptions) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    C c = long_case(std::move(name));
    change(c);
    check_attention(c, GetParam());
  };
  check("lengths", [](C& c) { c.key_lengths = {129, 3}, c.query_lengths = {300, 2}; });
  check("shorter than the front", [](C& c) { c.global_first = 9, c.key_lengths = {5, 0}; });
  check("few key heads", [](C& c) { c.heads = 6, c.global_first = 4; });
  check("one side", [](C& c) { c.right = -1; });
  check("softcap", [](C& c) { c.softcap = 2; });
  check("head size", [](C& c) { c.head_size = 128, c.global_first = 130; });
  check("odd head size", [](C& c) { c.head_size = 40; });
  check("short", [](C& c) { c.queries = c.keys = 20, c.left = 3, c.right = 2; });
  check("elsewhere too", [](C& c) { c.global = {2, 300}; });
  check("sinks", [](C& c) { c.sinks = true; });
  check("dropout", [](C& c) { c.dropout = 0.2f; });
  check("more keys", [](C& c) { c.keys = 340; });
  check("statistics", [](C& c) { c.statistics = Statistics::all, c.dentropy = true; });
}

// Keys that nobody sees, and rows that see nothing, next to the parts' edges.
TEST_P(AttentionGlobal, LargeScores) {
  AttentionCase c = long_case("large");
  c.deviation = 12;
  c.key_lengths = {90, 300};
  check_attention(c, GetParam());
}

}  // namespace
}  // namespace qkv::test
