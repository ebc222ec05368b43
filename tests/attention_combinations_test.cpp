// Every mask, bias and option alone, and every pair of them that may be combined.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

// Parts of one kind exclude each other; all others combine.
enum class Kind : std::uint8_t {
  causal,
  window,
  global,
  offset,
  key_lengths,
  query_lengths,
  allowed,
  bias,
  softcap,
  sinks,
  dropout,
  scale,
  gradients,
  layout,
};

struct Part {
  const char* name;
  Kind kind;
  std::function<void(AttentionCase&)> add;
};

constexpr std::int64_t kBatch = 2, kHeads = 4, kQueries = 37, kKeyRows = 45;

std::vector<Part> masks() {
  using C = AttentionCase;
  return {
      {"causal", Kind::causal, [](C& c) { c.causal = true; }},
      {"causal from the top left", Kind::causal,
       [](C& c) { c.causal = true, c.align = Align::top_left; }},
      {"window 5 2", Kind::window, [](C& c) { c.left = 5, c.right = 2; }},
      {"window 0 0", Kind::window, [](C& c) { c.left = c.right = 0; }},
      {"window 9 on the left", Kind::window, [](C& c) { c.left = 9; }},
      {"window 4 on the right", Kind::window, [](C& c) { c.right = 4; }},
      {"global", Kind::global, [](C& c) { c.global = {kKeyRows}; }},
      {"global by sequence", Kind::global,
       [](C& c) {
         c.global = {kBatch, kKeyRows};
       }},
      {"global at the front", Kind::global, [](C& c) { c.global_first = 3; }},
      {"offset 3", Kind::offset, [](C& c) { c.offset = 3; }},
      {"offset -7", Kind::offset, [](C& c) { c.offset = -7; }},
      {"offset 60", Kind::offset, [](C& c) { c.offset = 60; }},
      {"offset by sequence", Kind::offset,
       [](C& c) {
         c.offset_per_sequence = {11, -20};
       }},
      {"key lengths", Kind::key_lengths,
       [](C& c) {
         c.key_lengths = {17, 45};
       }},
      {"key lengths of 0", Kind::key_lengths,
       [](C& c) {
         c.key_lengths = {0, 32};
       }},
      {"query lengths", Kind::query_lengths,
       [](C& c) {
         c.query_lengths = {37, 12};
       }},
      {"query lengths of 0", Kind::query_lengths,
       [](C& c) {
         c.query_lengths = {16, 0};
       }},
      {"allowed", Kind::allowed,
       [](C& c) {
         c.allowed = {kBatch, kHeads, kQueries, kKeyRows};
       }},
      {"allowed keys", Kind::allowed,
       [](C& c) {
         c.allowed = {kBatch, 1, 1, kKeyRows};
       }},
  };
}

std::vector<Part> options() {
  using C = AttentionCase;
  return {
      {"bias", Kind::bias,
       [](C& c) {
         c.bias = {kBatch, kHeads, kQueries, kKeyRows};
       }},
      {"bias by key", Kind::bias,
       [](C& c) {
         c.bias = {kBatch, 1, 1, kKeyRows};
       }},
      {"bias that hides", Kind::bias,
       [](C& c) {
         c.bias = {1, kHeads, kQueries, kKeyRows}, c.bias_hides = true;
       }},
      {"slopes", Kind::bias, [](C& c) { c.slopes = {kHeads}; }},
      {"slopes by sequence", Kind::bias,
       [](C& c) {
         c.slopes = {kBatch, kHeads};
       }},
      {"table", Kind::bias, [](C& c) { c.buckets = 16; }},
      {"table, one way", Kind::bias, [](C& c) { c.buckets = 12, c.bidirectional = false; }},
      {"softcap", Kind::softcap, [](C& c) { c.softcap = 3; }},
      {"sinks", Kind::sinks, [](C& c) { c.sinks = true; }},
      {"dropout", Kind::dropout, [](C& c) { c.dropout = 0.3f; }},
      {"scale", Kind::scale, [](C& c) { c.scale = -0.4f; }},
      {"dlse and dentropy", Kind::gradients, [](C& c) { c.dlse = c.dentropy = true; }},
      {"heads inside", Kind::layout, [](C& c) { c.layout = Layout::heads_inside; }},
  };
}

const std::vector<Part>& parts() {
  static const std::vector<Part> all = [] {
    std::vector<Part> both = masks();
    for (const Part& part : options()) both.push_back(part);
    return both;
  }();
  return all;
}

// Statistics in every third case: with and without must both be right.
AttentionCase base_case(std::size_t number) {
  return {.batch = kBatch,
          .heads = kHeads,
          .queries = kQueries,
          .keys = kKeyRows,
          .head_size = 12,
          .value_size = number % 2 == 0 ? 12 : 10,
          .statistics = number % 3 == 0 ? Statistics::all : Statistics::none,
          .data = number};
}

class AttentionCombinations : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionCombinations, ::testing::ValuesIn(kFloats), dtype_name);

TEST_P(AttentionCombinations, EachAlone) {
  for (const Part& part : parts()) {
    for (const std::size_t number : {0, 1}) {
      AttentionCase c = base_case(number);
      c.name = part.name;
      part.add(c);
      check_attention(c, GetParam());
    }
  }
}

// All pairs in f32; the other dtypes differ in how tiles are read, not in what is combined, and
// take every third pair each.
TEST_P(AttentionCombinations, EveryPair) {
  const auto dtype = static_cast<std::size_t>(GetParam());
  std::size_t number = 0;
  for (const Part& a : parts()) {
    for (const Part& b : parts()) {
      if (&b <= &a || a.kind == b.kind) continue;
      ++number;
      if (GetParam() != DType::f32 && number % 3 != dtype) continue;
      AttentionCase c = base_case(number);
      c.name = std::string(a.name) + " & " + b.name;
      a.add(c);
      b.add(c);
      check_attention(c, GetParam());
    }
  }
}

// Three and more at once, in a fixed walk through the table.
TEST_P(AttentionCombinations, Several) {
  const std::vector<Part>& all = parts();
  for (std::size_t number = 0; number < 60; ++number) {
    AttentionCase c = base_case(number);
    std::vector<Kind> used;
    for (std::size_t n = 0; n < 12; ++n) {
      const Part& part = all[(number * 13 + n * (7 + number % 5)) % all.size()];
      if (std::find(used.begin(), used.end(), part.kind) != used.end()) continue;
      used.push_back(part.kind);
      c.name += std::string(used.size() > 1 ? " & " : "") + part.name;
      part.add(c);
    }
    check_attention(c, GetParam());
  }
}

// The same parts over lengths of several tiles, where whole tiles are hidden, whole or cut.
TEST_P(AttentionCombinations, EachOverSeveralTiles) {
  using C = AttentionCase;
  const std::vector<Part> large{
      {"causal", Kind::causal, [](C& c) { c.causal = true; }},
      {"window", Kind::window, [](C& c) { c.left = 40, c.right = 9; }},
      {"wide window", Kind::window, [](C& c) { c.left = 130, c.right = 100; }},
      {"causal window", Kind::window, [](C& c) { c.causal = true, c.left = 65; }},
      {"causal window and global", Kind::window,
       [](C& c) { c.causal = true, c.left = 20, c.global = {301}; }},
      {"window and global", Kind::window,
       [](C& c) {
         c.left = c.right = 12, c.global = {1, 301};
       }},
      {"far offset", Kind::offset, [](C& c) { c.causal = true, c.offset = -150; }},
      {"key length", Kind::key_lengths, [](C& c) { c.key_lengths = {129}; }},
      {"lengths", Kind::key_lengths,
       [](C& c) { c.causal = true, c.key_lengths = {200}, c.query_lengths = {140}; }},
      {"allowed", Kind::allowed,
       [](C& c) {
         c.allowed = {1, 1, 290, 301};
       }},
      {"slopes", Kind::bias, [](C& c) { c.causal = true, c.slopes = {2}; }},
      {"table", Kind::bias, [](C& c) { c.buckets = 32, c.max_distance = 128; }},
      {"bias", Kind::bias,
       [](C& c) {
         c.bias = {1, 2, 290, 301};
       }},
      {"dropout", Kind::dropout, [](C& c) { c.dropout = 0.2f, c.causal = true; }},
      {"sinks", Kind::sinks, [](C& c) { c.sinks = true, c.softcap = 5; }},
  };
  for (const Part& part : large) {
    C c{.name = part.name,
        .batch = 1,
        .key_heads = 1,
        .queries = 290,
        .keys = 301,
        .statistics = Statistics::all,
        .dlse = true,
        .dentropy = true};
    part.add(c);
    check_attention(c, GetParam());
  }
}

}  // namespace
}  // namespace qkv::test
