// Packed sequences: [T, H, D] with offsets, each sequence seeing only its counterpart.
#include <gtest/gtest.h>

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

TEST_P(AttentionPacked, EveryOption) {
  using C = AttentionCase;
  const auto other_keys = [](C& c) { c.key_offsets = {0, 9, 14, 14, 60, 100}; };
  const AttentionCase cases[] = {
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
  for (AttentionCase c : cases) {
    check_attention(c, GetParam());
    c.name += ", statistics";
    c.statistics = Statistics::all;
    c.dlse = c.dentropy = true;
    check_attention(c, GetParam());
  }
}

// Packing changes where the rows lie, not what they are: each sequence alone gives the same bits.
TEST_P(AttentionPacked, IsEachSequenceAlone) {
  const AttentionCase c =
      packed("alone", [](AttentionCase& p) { p.causal = true, p.sinks = true; });
  const AttentionInputs in = make_inputs(c, GetParam());
  for_each_target([&] {
    const AttentionRun all = run_attention(in);
    for (std::size_t b = 0; b + 1 < c.query_offsets.size(); ++b) {
      const auto alone = [&](const Tensor& x) {
        const Tensor rows = slice(x, 0, c.query_offsets[b], c.query_offsets[b + 1]);
        return transpose(reshape(rows, {1, rows.size(0), rows.size(1), rows.size(2)}), 1, 2);
      };
      AttentionInputs one{.q = alone(in.q),
                          .k = alone(in.k),
                          .v = alone(in.v),
                          .dout = alone(in.dout),
                          .dlse = {},
                          .dentropy = {},
                          .options = {}};
      one.options.mask = Mask::causal();
      one.options.sinks = in.options.sinks;
      const AttentionRun run = run_attention(one);
      SCOPED_TRACE("sequence " + std::to_string(b));
      expect_same_bits("out", alone(all.forward.out), run.forward.out);
      expect_same_bits("dq", alone(all.grads.dq), run.grads.dq);
      expect_same_bits("dk", alone(all.grads.dk), run.grads.dk);
      expect_same_bits("dv", alone(all.grads.dv), run.grads.dv);
    }
  });
}

}  // namespace
}  // namespace qkv::test
