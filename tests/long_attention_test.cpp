// The layers around quadratic cost: what they are equal to when they leave nothing out, padding,
// caches, and what they refuse.
#include "qkv/long_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::largest_difference;
using test::values_of;

constexpr std::int64_t kHidden = 24, kHeads = 4, kLength = 37;

nn::AttentionConfig config_of(bool causal) {
  return {.hidden = kHidden, .heads = kHeads, .causal = causal};
}

// The layer with the projections of `from`.
template <class Layer>
void share(const nn::ProjectedAttention& from, Layer& layer) {
  layer.q = from.q;
  layer.k = from.k;
  layer.v = from.v;
  layer.out = from.out;
}

nn::MultiHeadAttention exact_layer(bool causal) {
  nn::MultiHeadAttention layer(config_of(causal));
  nn::initialize(layer, 5, {.deviation = 0.15f});
  return layer;
}

Tensor some_input(std::int64_t batch = 2, std::int64_t length = kLength) {
  return Generator(8).normal({batch, length, kHidden});
}

TEST(Longformer, WithAWindowOverAllIsExact) {
  for (const bool causal : {false, true}) {
    const nn::MultiHeadAttention exact = exact_layer(causal);
    nn::LongformerAttention layer(config_of(causal), {.window = 2 * kLength});
    share(exact, layer);
    EXPECT_LT(largest_difference(layer(some_input(), {}), exact(some_input(), {})), 1e-6);
  }
}

// Against the exact kernel with every pair spelled out.
TEST(Longformer, DilatesByHead) {
  const std::vector<std::int64_t> dilations{1, 3, 3, 5};
  constexpr std::int64_t kHalf = 2;
  for (const bool causal : {false, true}) {
    for (const bool has_padding : {false, true}) {
      const nn::MultiHeadAttention exact = exact_layer(false);
      nn::LongformerAttention layer(config_of(causal),
                                    {.window = 2 * kHalf, .dilations = dilations});
      share(exact, layer);
      Tensor pairs = Tensor::zeros({2, kHeads, kLength, kLength}, {DType::boolean});
      const std::vector<std::int32_t> lengths{37, has_padding ? 20 : 37};
      bool* at = pairs.data<bool>();
      for (std::int64_t n = 0; n < pairs.numel(); ++n) {
        const std::int64_t j = n % kLength, i = n / kLength % kLength;
        const std::int64_t h = n / kLength / kLength % kHeads, b = n / kLength / kLength / kHeads;
        const std::int64_t d = dilations[static_cast<std::size_t>(h)];
        at[n] = (i - j) % d == 0 && std::abs(i - j) <= kHalf * d && (!causal || j <= i) &&
                j < lengths[static_cast<std::size_t>(b)];
      }
      nn::AttentionCall call;
      if (has_padding) call.mask = Mask::lengths(Tensor::from(lengths, {2})) & Mask::at_offset(0);
      EXPECT_LT(largest_difference(layer(some_input(), call),
                                   exact(some_input(), {.mask = Mask::allowed(pairs)})),
                1e-5);
    }
  }
}

// A position at a time, after a first part, through the cache.
template <class Layer>
void expect_decoding_is_the_whole(const Layer& layer) {
  const Tensor x = some_input(2, 60), whole = layer(x, {});
  nn::KvCache cache(60);
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const std::int64_t count : {9, 1, 1, 5, 1}) {
    parts.push_back(layer(slice(x, 1, at, at + count), {.cache = &cache}));
    at += count;
  }
  for (; at < 60; ++at) parts.push_back(layer(slice(x, 1, at, at + 1), {.cache = &cache}));
  EXPECT_LT(largest_difference(concat(parts, 1), whole), 2e-5);
  EXPECT_EQ(cache.length(), 60);
}

TEST(Longformer, DecodesAsItReads) {
  for (const std::vector<std::int64_t>& dilations :
       {std::vector<std::int64_t>{1}, std::vector<std::int64_t>{1, 2, 2, 4}}) {
    nn::LongformerAttention layer(config_of(true), {.window = 6, .dilations = dilations});
    share(exact_layer(true), layer);
    expect_decoding_is_the_whole(layer);
  }
}

TEST(Longformer, FirstTokensSeeAllWhenAsked) {
  const nn::MultiHeadAttention exact = exact_layer(false);
  nn::LongformerAttention layer(config_of(false), {.window = 4, .global_tokens = 1});
  share(exact, layer);
  const Tensor got = layer(some_input(), {}), all = exact(some_input(), {});
  EXPECT_LT(largest_difference(slice(got, 1, 0, 1), slice(all, 1, 0, 1)), 1e-6);
  EXPECT_GT(largest_difference(slice(got, 1, 1, 2), slice(all, 1, 1, 2)), 1e-3);
}

TEST(Longformer, RefusesWhatItCannotDo) {
  EXPECT_ERROR("3 dilations for 4 heads",
               nn::LongformerAttention(config_of(false), {.dilations = {1, 2, 3}}));
  EXPECT_ERROR("not for causal",
               nn::LongformerAttention(config_of(true), {.global_projections = true}));
  nn::LongformerAttention layer(config_of(false), {.dilations = {2}, .global_tokens = 1});
  share(exact_layer(false), layer);
  EXPECT_ERROR("cannot have global positions", layer(some_input(), {}));
}

Tensor identity(std::int64_t rows, std::int64_t columns) {
  Tensor x = Tensor::zeros({rows, columns});
  for (std::int64_t i = 0; i < std::min(rows, columns); ++i) x.data<float>()[i * columns + i] = 1;
  return x;
}

nn::LinformerAttention linformer_of(nn::LinformerSharing sharing, std::int64_t length = kLength) {
  nn::LinformerAttention layer(config_of(false),
                               {.length = length, .max_length = kLength, .sharing = sharing});
  share(exact_layer(false), layer);
  return layer;
}

TEST(Linformer, WithIdentitiesIsExact) {
  const nn::MultiHeadAttention exact = exact_layer(false);
  for (const auto sharing : {nn::LinformerSharing::none, nn::LinformerSharing::heads,
                             nn::LinformerSharing::key_value, nn::LinformerSharing::layers}) {
    const nn::LinformerAttention layer = linformer_of(sharing);
    const Tensor one = identity(kLength, kLength);
    const bool by_head = sharing == nn::LinformerSharing::none;
    const Tensor e = by_head ? contiguous(expand(one, {kHeads, kLength, kLength})) : one;
    layer.projection()->keys = e;
    layer.projection()->values = e;
    EXPECT_LT(largest_difference(layer(some_input(), {}), exact(some_input(), {})), 1e-5);
  }
}

// A shorter input uses the first columns, and so does one that is filled up with padding.
TEST(Linformer, TakesShorterInputsAndPadding) {
  const nn::LinformerAttention layer = linformer_of(nn::LinformerSharing::heads, 6);
  layer.projection()->keys = Generator(1).normal({6, kLength});
  layer.projection()->values = Generator(2).normal({6, kLength});
  const Tensor x = some_input(1), part = slice(x, 1, 0, 21);
  const Mask padding =
      Mask::lengths(Tensor::from(std::vector<std::int32_t>{21}, {1})) & Mask::at_offset(0);
  const Tensor alone = layer(part, {}), padded = layer(x, {.mask = padding});
  EXPECT_LT(largest_difference(slice(padded, 1, 0, 21), alone), 1e-5);
  EXPECT_ERROR("38 positions are more than the 37", layer(some_input(1, 38), {}));
}

TEST(Linformer, SharesWhatItIsToldTo) {
  const auto names = [](nn::Module& module) {
    nn::initialize(module, 1);
    std::vector<std::string> result;
    for (const nn::Parameter& p : nn::parameters(module)) {
      if (p.name.starts_with("linformer")) result.push_back(p.name + to_string(p.value.shape()));
    }
    return result;
  };
  using Names = std::vector<std::string>;
  auto none = linformer_of(nn::LinformerSharing::none, 6);
  auto heads = linformer_of(nn::LinformerSharing::heads, 6);
  auto both = linformer_of(nn::LinformerSharing::key_value, 6);
  EXPECT_EQ(names(none), (Names{"linformer.keys[4, 6, 37]", "linformer.values[4, 6, 37]"}));
  EXPECT_EQ(names(heads), (Names{"linformer.keys[6, 37]", "linformer.values[6, 37]"}));
  EXPECT_EQ(names(both), (Names{"linformer.keys[6, 37]"}));
  nn::LinformerAttention second(
      config_of(false),
      {.length = 6, .max_length = kLength, .sharing = nn::LinformerSharing::layers},
      both.projection());
  EXPECT_EQ(names(second), Names{});
}

TEST(Linformer, CannotBeCausal) {
  EXPECT_ERROR("mixes all positions", nn::LinformerAttention(config_of(true), {}));
}

nn::PerformerAttention performer_of(bool causal, const nn::PerformerConfig& performer) {
  nn::PerformerAttention layer(config_of(causal), performer, 0);
  share(exact_layer(causal), layer);
  return layer;
}

TEST(PerformerLayer, ComesCloseToExact) {
  for (const bool causal : {false, true}) {
    const Tensor exact = exact_layer(causal)(some_input(), {});
    const double few =
        largest_difference(performer_of(causal, {.features = 16})(some_input(), {}), exact);
    const double many =
        largest_difference(performer_of(causal, {.features = 8192})(some_input(), {}), exact);
    EXPECT_LT(many, 0.5 * few);
  }
}

TEST(PerformerLayer, DecodesAsItReadsWithAStateThatDoesNotGrow) {
  for (const FeatureKind kind : {FeatureKind::softmax, FeatureKind::relu}) {
    const nn::PerformerAttention layer = performer_of(true, {.features = 32, .kind = kind});
    expect_decoding_is_the_whole(layer);
    nn::KvCache cache(1000);
    std::size_t after_one = 0;
    for (int i = 0; i < 300; ++i) {
      layer(some_input(1, 1), {.cache = &cache});
      if (i == 0) after_one = cache.bytes();
    }
    EXPECT_EQ(cache.bytes(), after_one);
  }
}

TEST(PerformerLayer, PassesOverPadding) {
  const nn::PerformerAttention layer = performer_of(false, {.features = 32});
  const Tensor x = some_input(1), part = slice(x, 1, 0, 21);
  const Mask padding =
      Mask::lengths(Tensor::from(std::vector<std::int32_t>{21}, {1})) & Mask::at_offset(0);
  EXPECT_LT(largest_difference(slice(layer(x, {.mask = padding}), 1, 0, 21), layer(part, {})),
            1e-5);
  // On the left, where the first rows see nothing.
  const nn::PerformerAttention causal = performer_of(true, {.features = 32});
  Tensor visible = Tensor::full({1, 1, 1, kLength}, 1, {DType::boolean});
  std::fill_n(visible.data<bool>(), 16, false);
  const Tensor behind = slice(x, 1, 16, kLength);
  const Tensor got = causal(x, {.mask = Mask::allowed(visible)});
  EXPECT_LT(largest_difference(slice(got, 1, 16, kLength), causal(behind, {})), 1e-5);
}

TEST(PerformerLayer, RedrawsOnASchedule) {
  const nn::PerformerAttention layer = performer_of(false, {.features = 32, .redraw = 10});
  const auto at_step = [&](std::int64_t step) {
    nn::Training training{.step = step};
    return bytes_of(layer(some_input(), {.training = &training}));
  };
  EXPECT_EQ(at_step(0), at_step(9));
  EXPECT_NE(at_step(9), at_step(10));
  EXPECT_EQ(at_step(10), at_step(19));
  EXPECT_EQ(at_step(0), bytes_of(layer(some_input(), {})));  // what a model is used with
}

TEST(PerformerLayer, LayersDrawTheirOwnDirections) {
  const nn::PerformerAttention first(config_of(false), {}, 0), second(config_of(false), {}, 1);
  EXPECT_NE(bytes_of(first.directions(0)), bytes_of(second.directions(0)));
}

// What a viewer is told is an exact attention with the same weights.
TEST(LongLayers, TellATraceTheWeightsTheyUse) {
  const auto expect_same = [](const nn::Attention& layer) {
    nn::Trace trace;
    trace.attentions = true;
    std::vector<Tensor> told;
    trace.on_attention = [&](const nn::TracedAttention& a) {
      told.push_back(attention_weights(a.queries, a.keys, a.options));
    };
    layer(some_input(), {.trace = &trace});
    ASSERT_EQ(trace.attention_weights.size(), 1u);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].shape(), (Shape{2, kHeads, kLength, kLength}));
    EXPECT_LT(largest_difference(told[0], trace.attention_weights[0]), 1e-5);
  };
  expect_same(performer_of(false, {.features = 32}));
  expect_same(performer_of(true, {.features = 32}));
  const nn::LinformerAttention linformer = linformer_of(nn::LinformerSharing::heads);
  linformer.projection()->keys = linformer.projection()->values = identity(kLength, kLength);
  expect_same(linformer);
  nn::LongformerAttention longformer(config_of(true), {.window = 6});
  share(exact_layer(true), longformer);
  expect_same(longformer);
}

TEST(PerformerLayer, RefusesWhatNeedsScores) {
  const nn::PerformerAttention layer = performer_of(false, {});
  EXPECT_ERROR("a bias is added to scores",
               layer(some_input(), {.bias = Bias::alibi(nn::alibi_slopes(kHeads))}));
  EXPECT_ERROR("of masks it takes", layer(some_input(), {.mask = Mask::window(3, 3)}));
  nn::AttentionConfig capped = config_of(false);
  capped.softcap = 30;
  EXPECT_ERROR("softcap", nn::PerformerAttention(capped, {}, 0));
}

}  // namespace
}  // namespace qkv
