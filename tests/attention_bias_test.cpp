// Biases and boolean masks in every form that broadcasts, with their gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class AttentionBias : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionBias, ::testing::ValuesIn(kFloats), dtype_name);

constexpr std::int64_t kB = 3, kH = 4, kSq = 21, kSk = 38;

std::vector<Extents> forms() {
  std::vector<Extents> all{{kSq, kSk}, {1, kSk},       {kSq, 1},    {kSk},       {1},
                           {kH, 1, 1}, {kH, kSq, kSk}, {1, 1, kSk}, {kH, kSq, 1}};
  for (int bits = 0; bits < 16; ++bits) {
    all.push_back({bits & 1 ? kB : 1, bits & 2 ? kH : 1, bits & 4 ? kSq : 1, bits & 8 ? kSk : 1});
  }
  return all;
}

AttentionCase form_case(const Extents& form) {
  return {.name = "form " + to_string(Shape(std::span<const std::int64_t>(form))),
          .batch = kB,
          .heads = kH,
          .queries = kSq,
          .keys = kSk,
          .head_size = 16};
}

TEST_P(AttentionBias, EveryForm) {
  for (const Extents& form : forms()) {
    AttentionCase c = form_case(form);
    c.bias = form;
    check_attention(c, GetParam());
    c.name += " that hides";
    c.bias_hides = true;
    c.causal = true;
    c.statistics = Statistics::all;
    c.dentropy = true;
    check_attention(c, GetParam());
  }
}

TEST_P(AttentionBias, EveryFormOfMask) {
  for (const Extents& form : forms()) {
    AttentionCase c = form_case(form);
    c.allowed = form;
    c.statistics = Statistics::all;
    check_attention(c, GetParam());
  }
}

TEST_P(AttentionBias, EveryDType) {
  for (const DType dtype : kFloats) {
    AttentionCase c = form_case({1, kH, kSq, kSk});
    c.name = "bias in " + to_string(dtype);
    c.bias = {1, kH, kSq, kSk};
    c.bias_dtype = dtype;
    check_attention(c, GetParam());
    c.bias_gradient = false;
    check_attention(c, GetParam());
  }
}

TEST_P(AttentionBias, AnyStrides) {
  AttentionCase c = form_case({kB, kH, kSq, kSk});
  c.bias = {kB, kH, kSq, kSk};
  c.allowed = {kB, 1, kSq, kSk};
  AttentionInputs in = make_inputs(c, GetParam());
  Tensor& bias = in.options.bias.values;
  bias = laid_out(bias, Layout::scattered);
  check_attention(in);
  in.options.mask.allowed_pairs =
      transpose(contiguous(transpose(in.options.mask.allowed_pairs, 2, 3)), 2, 3);
  bias = transpose(contiguous(transpose(bias, 2, 3)), 2, 3);
  check_attention(in);
  // An expanded tensor has the shape of every pair, and a gradient of that shape too.
  bias = expand(slice(bias, 0, 0, 1), {kB, kH, kSq, kSk});
  check_attention(in);
}

// Several tiles, where a broadcast gradient is summed across them.
TEST_P(AttentionBias, FormsOverSeveralTiles) {
  for (const Extents& form : std::vector<Extents>{
           {1, 1, 1, 1}, {1, 2, 1, 270}, {2, 1, 150, 1}, {150, 270}, {2, 2, 150, 270}}) {
    AttentionCase c{.name = "form " + to_string(Shape(std::span<const std::int64_t>(form))),
                    .key_heads = 1,
                    .queries = 150,
                    .keys = 270,
                    .causal = true,
                    .bias = form};
    check_attention(c, GetParam());
  }
}

// A bias of -inf and a boolean mask say the same.
TEST_P(AttentionBias, MinusInfinityIsAMask) {
  AttentionCase c = form_case({kSq, kSk});
  c.bias = {kSq, kSk};
  c.bias_hides = true;
  AttentionInputs in = make_inputs(c, GetParam());
  const std::vector<double> values = values_of(in.options.bias.values);
  Tensor allowed = Tensor::empty({kSq, kSk}, {DType::boolean});
  Tensor finite = Tensor::empty({kSq, kSk});
  for (std::size_t i = 0; i < values.size(); ++i) {
    allowed.data<bool>()[i] = std::isfinite(values[i]);
    finite.data<float>()[i] = std::isfinite(values[i]) ? static_cast<float>(values[i]) : 0;
  }
  const ReferenceResult hidden = reference_exact(reference_problem(in));
  in.options.bias.values = to(finite, GetParam());
  in.options.mask.allowed_pairs = allowed;
  const ReferenceResult masked = reference_exact(reference_problem(in));
  EXPECT_EQ(hidden.out, masked.out);
  EXPECT_EQ(hidden.dbias, masked.dbias);
  check_attention(in);
}

// Where a tile has no other reason to look for hidden keys.
TEST_P(AttentionBias, MinusInfinityHasNoStatistics) {
  for (const std::int64_t keys : {32, 64, 160}) {
    check_attention({.name = "whole tiles",
                     .queries = 32,
                     .keys = keys,
                     .bias = {1, 1, 32, keys},
                     .bias_hides = true,
                     .statistics = Statistics::all},
                    GetParam());
  }
}

TEST_P(AttentionBias, Slopes) {
  for (const Extents& form : std::vector<Extents>{{kH}, {1, kH}, {kB, kH}}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t queries : {std::int64_t{1}, kSq, std::int64_t{100}}) {
        AttentionCase c = form_case(form);
        c.slopes = form;
        c.queries = queries;
        c.causal = causal;
        c.offset = causal ? std::optional<std::int64_t>{} : 5;
        check_attention(c, GetParam());
        c.bias_gradient = false;
        check_attention(c, GetParam());
      }
    }
  }
}

TEST_P(AttentionBias, Tables) {
  for (const bool bidirectional : {false, true}) {
    for (const std::int64_t buckets : {4, 7, 32, 64}) {
      for (const std::int64_t queries : {std::int64_t{1}, kSq, std::int64_t{105}}) {
        AttentionCase c = form_case({buckets, kH});
        c.batch = 2;
        c.buckets = buckets;
        c.bidirectional = bidirectional;
        c.max_distance = 64;
        c.queries = queries;
        c.keys = 120;
        check_attention(c, GetParam());
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
