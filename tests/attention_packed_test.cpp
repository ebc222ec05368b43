// Packed sequences: [T, H, D] with offsets, each sequence seeing only its counterpart.
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "core/backend.h"
#include "qkv/ops.h"
#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionPacked : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionPacked, ::testing::ValuesIn(kFloats), dtype_name);

AttentionCase packed(std::string name, auto&& change) {
  AttentionCase c{.name = std::move(name), .heads = 4, .head_size = 16, .value_size = 20};
  c.query_offsets = {0, 7, 7, 40, 41, 80};
  change(c);
  return c;
}

std::vector<AttentionCase> packed_cases() {
  using C = AttentionCase;
  const auto other_keys = [](C& c) { c.key_offsets = {0, 9, 14, 14, 60, 100}; };
  return {
      packed("itself", [](C&) {}),
      packed("causal", [](C& c) { c.causal = true; }),
      packed("other keys", [&](C& c) { other_keys(c); }),
      packed("other keys, causal", [&](C& c) { other_keys(c), c.causal = true; }),
      packed("top left", [&](C& c) { other_keys(c), c.causal = true, c.align = Align::top_left; }),
      packed("window", [](C& c) { c.left = 4, c.right = 2; }),
      packed("offset", [](C& c) { c.causal = true, c.offset = -3; }),
      packed("offsets",
             [](C& c) {
               c.causal = true, c.offset_per_sequence = {0, 1, -9, 3, 50};
             }),
      packed("key lengths",
             [](C& c) {
               c.key_lengths = {5, 0, 33, 0, 20}, c.causal = true;
             }),
      packed("query lengths",
             [](C& c) {
               c.query_lengths = {7, 0, 11, 1, 0}, c.causal = true;
             }),
      packed("slopes", [](C& c) { c.slopes = {4}, c.causal = true; }),
      packed("slopes by sequence",
             [](C& c) {
               c.slopes = {5, 4};
             }),
      packed("table", [&](C& c) { other_keys(c), c.buckets = 16; }),
      packed("softcap, sinks", [](C& c) { c.softcap = 2, c.sinks = true; }),
      packed("dropout", [](C& c) { c.dropout = 0.3f, c.causal = true; }),
      packed("one key head", [](C& c) { c.key_heads = 1, c.causal = true; }),
      packed("one key head, strides", [](C& c) { c.key_heads = 1, c.layout = Layout::scattered; }),
      packed("one sequence",
             [](C& c) {
               c.query_offsets = {0, 50}, c.causal = true;
             }),
      packed("no sequence", [](C& c) { c.query_offsets = {0}; }),
      packed("empty sequences",
             [](C& c) {
               c.query_offsets = {0, 0, 0};
             }),
      packed("no keys", [](C& c) { c.key_offsets = {0, 0, 0, 0, 0, 0}, c.sinks = true; }),
      packed("one row each",
             [](C& c) {
               c.query_offsets = {0, 1, 2, 3, 4}, c.key_offsets = {0, 70, 71, 200, 333},
               c.causal = true;
             }),
      packed("tiles",
             [](C& c) {
               c.query_offsets = {0, 130, 147, 300}, c.causal = true;
             }),
  };
}

TEST_P(AttentionPacked, EveryOption) {
  for (AttentionCase c : packed_cases()) {
    check_attention(c, GetParam());
    c.name += ", statistics";
    c.statistics = Statistics::all;
    c.dlse = c.dentropy = true;
    check_attention(c, GetParam());
  }
}

// Neighbours lie side by side in memory and still do not touch: a sequence of NaN changes no bit of
// the others, forward or backward.
TEST_P(AttentionPacked, SequencesDoNotTouch) {
  for (const bool causal : {false, true}) {
    const AttentionCase c = packed("neighbours", [&](AttentionCase& p) {
      p.query_offsets = {0, 7, 40, 41, 170, 200}, p.causal = causal;
    });
    SCOPED_TRACE(to_string(GetParam()) + (causal ? " causal" : ""));
    const AttentionInputs clean = make_inputs(c, GetParam());
    const Tensor nan = Tensor::full({129, 4, 20}, std::numeric_limits<double>::quiet_NaN());
    AttentionInputs poisoned = make_inputs(c, GetParam());
    for (const Tensor& x : {poisoned.q, poisoned.k, poisoned.v, poisoned.dout}) {
      Tensor rows = slice(x, 0, 41, 170);
      const Tensor some = slice(slice(nan, 1, 0, x.size(1)), 2, 0, x.size(2));
      backend(kCpu).copy(some, rows);
    }
    for_each_target([&] {
      const AttentionRun a = run_attention(clean), b = run_attention(poisoned);
      for (const auto& [begin, end] : {std::pair{0, 41}, std::pair{170, 200}}) {
        const auto expect = [&](const char* what, const Tensor& x, const Tensor& y, int axis) {
          expect_same_bits(what, slice(x, axis, begin, end), slice(y, axis, begin, end));
        };
        expect("out", a.forward.out, b.forward.out, 0);
        expect("lse", a.forward.lse, b.forward.lse, 1);
        expect("dq", a.grads.dq, b.grads.dq, 0);
        expect("dk", a.grads.dk, b.grads.dk, 0);
        expect("dv", a.grads.dv, b.grads.dv, 0);
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
