// Head sizes and lengths: every head size 1..320 and 384, 512; lengths around every tile edge.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionSizes : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionSizes, ::testing::ValuesIn(kFloats), dtype_name);

AttentionCase head_size_case(std::int64_t size) {
  // Lengths walk with the size, so that neighbours differ in their remainders too.
  return {.batch = 1,
          .key_heads = 1,
          .queries = 3 + size % 11,
          .keys = 5 + size % 23,
          .head_size = size,
          .causal = size % 3 == 0,
          .data = static_cast<std::uint64_t>(size)};
}

TEST_P(AttentionSizes, EveryHeadSize) {
  for (std::int64_t size = 1; size <= 320; ++size)
    check_attention(head_size_case(size), GetParam());
  for (const std::int64_t size : {384, 512}) check_attention(head_size_case(size), GetParam());
}

// Dv apart from D, both ways, around the widths of registers and tiles.
TEST_P(AttentionSizes, EveryValueSize) {
  const std::int64_t sizes[] = {1,   2,   3,   7,   8,   15,  16,  17,  31,  33,
                                48,  63,  64,  65,  96,  127, 128, 129, 160, 191,
                                192, 255, 256, 257, 320, 384, 511, 512};
  for (std::size_t n = 0; n < std::size(sizes); ++n) {
    AttentionCase c = head_size_case(sizes[n]);
    c.value_size = sizes[(n * 5 + 3) % std::size(sizes)];
    check_attention(c, GetParam());
  }
}

// More rows and keys than any tile holds, at the head sizes models have.
TEST_P(AttentionSizes, CommonHeadSizesWithSeveralTiles) {
  for (const std::int64_t size : {16, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256}) {
    check_attention({.name = "several tiles",
                     .batch = 1,
                     .queries = 130,
                     .keys = 141,
                     .head_size = size,
                     .causal = size % 32 == 0},
                    GetParam());
  }
}

// More tiles of queries and of keys than a GPU's kernel has stages for them, so that each stage is
// filled again; few, so that a sanitizer can watch.
TEST_P(AttentionSizes, MoreTilesThanStages) {
  for (const std::int64_t size : {64, 128, 160, 192, 256}) {
    check_attention({.name = "more tiles than stages",
                     .batch = 1,
                     .heads = 2,
                     .key_heads = 1,
                     .queries = 400,
                     .keys = 270,
                     .head_size = size},
                    GetParam());
  }
}

// Gradients may be summed in any order, which a GPU then does.
TEST_P(AttentionSizes, SumsInAnyOrder) {
  for (const std::int64_t size : {64, 128, 192, 256}) {
    for (const bool causal : {false, true}) {
      check_attention({.name = "any order",
                       .batch = 1,
                       .heads = 4,
                       .key_heads = 2,
                       .queries = 200,
                       .keys = 200,
                       .head_size = size,
                       .causal = causal,
                       .deterministic = false},
                      GetParam());
    }
  }
}

// More blocks of keys than a GPU has multiprocessors, and heads that do not divide evenly among
// those that are under way at once.
TEST_P(AttentionSizes, ManyHeadsOfSeveralTiles) {
  for (const bool causal : {false, true}) {
    check_attention({.name = "many heads",
                     .batch = 1,
                     .heads = 37,
                     .key_heads = 37,
                     .queries = 530,
                     .keys = 530,
                     .head_size = 8,
                     .causal = causal},
                    GetParam());
  }
}

// As many rows of large heads as a GPU takes in blocks of 192, of which there are then fewer
// rounds.
TEST_P(AttentionSizes, ManyLargeHeads) {
  for (const Statistics wanted : {Statistics::none, Statistics::entropy}) {
    check_attention({.name = "many large heads",
                     .batch = 1,
                     .heads = 67,
                     .key_heads = 67,
                     .queries = 190,
                     .keys = 250,
                     .head_size = 128,
                     .statistics = wanted},
                    GetParam(), Pass::forward);
  }
}

std::vector<std::int64_t> edge_lengths() {
  std::vector<std::int64_t> lengths{1};
  for (const std::int64_t tile : {8, 16, 32, 48, 64, 96, 128, 256, 512}) {
    for (const std::int64_t length : {tile - 1, tile, tile + 1, 2 * tile + 3}) {
      if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) {
        lengths.push_back(length);
      }
    }
  }
  return lengths;
}

// Each length as Sq and as Sk: with itself, and with two others that a fixed step picks.
std::vector<AttentionCase> edge_cases() {
  const std::vector<std::int64_t> lengths = edge_lengths();
  std::vector<AttentionCase> cases;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    for (const std::size_t other :
         {n, (n * 11 + 5) % lengths.size(), (n * 17 + 2) % lengths.size()}) {
      AttentionCase c{.name = "edge",
                      .batch = 1,
                      .heads = 1,
                      .key_heads = 1,
                      .queries = lengths[n],
                      .keys = lengths[other],
                      .head_size = n % 2 == 0 ? 16 : 24,
                      .data = 100 * n + other};
      const std::size_t kind = (n + other) % 4;
      c.causal = kind == 1 || kind == 3;
      if (kind == 2) c.left = lengths[other] / 3, c.right = 5;
      if (kind == 3) c.align = Align::top_left;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

TEST_P(AttentionSizes, LengthsAroundTileEdgesForward) {
  for (const AttentionCase& c : edge_cases()) check_attention(c, GetParam(), Pass::forward);
}

TEST_P(AttentionSizes, LengthsAroundTileEdgesBackward) {
  for (const AttentionCase& c : edge_cases()) {
    // All but the largest, of which one is enough: the reference is quadratic.
    const bool large = c.queries * c.keys > 300 * 300;
    if (!large || (c.queries == 513 && c.keys != 513)) check_attention(c, GetParam());
  }
}

// Where others broke: S % 128 == 64 with a mask.
TEST_P(AttentionSizes, HalfATileLeftWithAMask) {
  for (const std::int64_t length : {64, 192, 320}) {
    const AttentionCase base{
        .batch = 1, .heads = 1, .key_heads = 1, .queries = length, .keys = length, .head_size = 32};
    AttentionCase causal = base, window = base, lengths = base, allowed = base, bias = base;
    causal.name = "causal", causal.causal = true;
    window.name = "window", window.left = 70, window.right = 3;
    lengths.name = "lengths", lengths.key_lengths = {static_cast<std::int32_t>(length - 17)};
    allowed.name = "allowed", allowed.allowed = {1, 1, length, length};
    bias.name = "bias", bias.bias = {1, 1, length, length}, bias.bias_hides = true;
    for (const auto& c : {causal, window, lengths, allowed, bias}) check_attention(c, GetParam());
  }
}

// Nothing to see, or nobody to see it.
TEST_P(AttentionSizes, EmptyLengths) {
  const auto all = Statistics::all;
  for (const bool causal : {false, true}) {
    check_attention({.name = "Sk 0",
                     .keys = 0,
                     .causal = causal,
                     .sinks = true,
                     .statistics = all,
                     .dlse = true},
                    GetParam());
    check_attention({.name = "Sq 0", .queries = 0, .causal = causal, .statistics = all},
                    GetParam());
    check_attention({.name = "both 0", .queries = 0, .keys = 0, .causal = causal}, GetParam());
    check_attention({.name = "B 0", .batch = 0, .causal = causal, .statistics = all}, GetParam());
  }
  check_attention({.name = "bias, Sk 0", .keys = 0, .bias = {2, 1, 19, 1}}, GetParam());
  check_attention({.name = "table, Sk 0", .keys = 0, .buckets = 8}, GetParam());
}

TEST_P(AttentionSizes, OneQueryWithVeryNegativeLse) {
  for (const float shift : {-1e3f, -1e4f, -6e4f}) {
    for (const std::int64_t keys : {1, 7, 64, 300}) {
      check_attention({.name = "very negative",
                       .queries = 1,
                       .keys = keys,
                       .bias = {1, 1, 1, keys},
                       .bias_shift = shift,
                       .statistics = Statistics::all,
                       .dlse = true},
                      GetParam());
    }
  }
}

}  // namespace
}  // namespace qkv::test
