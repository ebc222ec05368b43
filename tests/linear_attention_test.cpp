// Attention by features: what the directions are, that the estimate comes closer, and that a state
// of constant size gives what the whole sequence gives. The operators themselves are rows of the
// operator table (support/op_rows_linear.cpp).
#include "qkv/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.h"
#include "ops/performer_segments.h"
#include "qkv/attention.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::relative_distance;
using test::values_of;

TEST(Directions, AreOrthogonalInBlocksAndAsLongAsNormalVectors) {
  constexpr std::int64_t kSize = 16, kCount = 40;
  const std::vector<double> w = values_of(orthogonal_directions(kCount, kSize, 3));
  const auto dot = [&](std::int64_t i, std::int64_t j) {
    double sum = 0;
    for (std::int64_t d = 0; d < kSize; ++d) sum += w[i * kSize + d] * w[j * kSize + d];
    return sum;
  };
  double mean = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    mean += dot(i, i) / kCount;
    for (std::int64_t j = i / kSize * kSize; j < i; ++j) EXPECT_NEAR(dot(i, j), 0, 1e-5);
  }
  EXPECT_NEAR(mean, kSize, 4);  // five times what 40 chi-squared lengths deviate by
}

TEST(Directions, DependOnTheSeedAlone) {
  EXPECT_EQ(bytes_of(orthogonal_directions(20, 8, 1)), bytes_of(orthogonal_directions(20, 8, 1)));
  EXPECT_NE(bytes_of(orthogonal_directions(20, 8, 1)), bytes_of(orthogonal_directions(20, 8, 2)));
}

// The mean error over a few draws falls like 1 / sqrt(features).
TEST(Performer, ConvergesToExactAttention) {
  Generator random(4);
  // Scores of variance 1/16: the estimate of exp(x) has a relative variance near e^2 / features.
  const Tensor q = random.normal({1, 2, 96, 16}, 0, 0.5f);
  const Tensor k = random.normal({1, 2, 96, 16}, 0, 0.5f);
  const Tensor v = random.normal({1, 2, 96, 16});
  for (const bool causal : {false, true}) {
    AttentionOptions options;
    if (causal) options.mask = Mask::causal();
    const Tensor exact = attention(q, k, v, options);
    std::vector<double> errors;
    for (const std::int64_t features : {32, 128, 512, 2048, 8192}) {
      double error = 0;
      constexpr int kDraws = 6;
      for (int draw = 0; draw < kDraws; ++draw) {
        const Tensor w = orthogonal_directions(features, 16, 100 + draw);
        error += relative_distance(performer_attention(q, k, v, w, {}, causal), exact) / kDraws;
      }
      errors.push_back(error);
    }
    const double slope = std::log(errors.back() / errors.front()) / std::log(8192.0 / 32);
    EXPECT_NEAR(slope, -0.5, 0.1) << "from " << errors.front() << " to " << errors.back();
    EXPECT_LT(errors.back(), 0.05);
  }
}

// Far beyond what f32 holds, were exponents not relative to the largest: nothing overflows, and
// rows that are far from all keys are numbers still.
TEST(Performer, StaysFiniteWhereScoresAreLarge) {
  Generator random(5);
  const Tensor w = orthogonal_directions(64, 16, 1);
  for (const float deviation : {1e-3f, 10.0f, 100.0f}) {
    const Tensor q = random.normal({1, 1, 70, 16}, 0, deviation);
    const Tensor k = random.normal({1, 1, 70, 16}, 0, deviation);
    const Tensor v = random.normal({1, 1, 70, 16});
    for (const bool causal : {false, true}) {
      for (const double value : values_of(performer_attention(q, k, v, w, {}, causal))) {
        ASSERT_TRUE(std::isfinite(value)) << deviation;
      }
    }
  }
}

// Parts of any size, one position included, through the state; keys grow on the way, so that the
// exponent all is relative to moves.
TEST(Performer, AStateOfConstantSizeGivesWhatTheWholeSequenceGives) {
  Generator random(6);
  const Shape shape{2, 2, 150, 8};
  const Tensor q = random.normal({2, 4, 150, 8}), v = random.normal(shape);
  Tensor k = random.normal(shape);
  for (std::int64_t i = 0; i < k.numel(); ++i) {
    k.data<float>()[i] *= 1 + static_cast<float>(i / 8 % 150) / 50;
  }
  const Tensor w = orthogonal_directions(32, 8, 1);
  for (const FeatureKind kind : {FeatureKind::softmax, FeatureKind::relu}) {
    const FeatureOptions options{.kind = kind};
    const Tensor whole = performer_attention(q, k, v, w, options, true);
    LinearState state;
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t count : {1, 1, 70, 1, 3, 74}) {
      const auto cut = [&](const Tensor& x) { return slice(x, 2, at, at + count); };
      const KeyFeatures keys = key_features(cut(k), w, options, state.top);
      parts.push_back(linear_attention(query_features(cut(q), w, options), keys.features, cut(v),
                                       keys.decay, state));
      state.top = keys.top;
      EXPECT_EQ(state.sums.shape(), (Shape{2, 2, 32, 16}));
      at += count;
    }
    EXPECT_LT(relative_distance(concat(parts, 2), whole), 1e-5);
  }
}

TEST(Performer, WeightsAreThoseItUses) {
  Generator random(7);
  const Tensor q = random.normal({1, 2, 20, 8}), k = random.normal({1, 2, 20, 8});
  const Tensor v = random.normal({1, 2, 20, 8}), w = orthogonal_directions(24, 8, 1);
  for (const bool causal : {false, true}) {
    const Tensor weights =
        linear_attention_weights(query_features(q, w), key_features(k, w).features, causal);
    EXPECT_LT(relative_distance(matmul(weights, v), performer_attention(q, k, v, w, {}, causal)),
              1e-5);
  }
}

// Inputs too long for one segment: the result and the gradients of all at once.
TEST(Performer, GivesTheSameInSegments) {
  constexpr std::int64_t kLength = 9000;
  Generator random(8);
  const Tensor q = random.normal({1, 4, kLength, 8}), k = random.normal({1, 2, kLength, 8});
  const Tensor v = random.normal({1, 2, kLength, 6}), dy = random.normal({1, 4, kLength, 6});
  const Tensor w = orthogonal_directions(32, 8, 5);
  std::vector<float> seen(kLength, 1);
  std::fill(seen.begin() + 4000, seen.begin() + 6000, 0.0f);
  const Tensor visible = Tensor::from(seen, {1, 1, kLength, 1});
  for (const FeatureKind kind : {FeatureKind::softmax, FeatureKind::relu}) {
    for (const bool causal : {false, true}) {
      const FeatureOptions options{.kind = kind, .visible = visible};
      const Tensor alone = performer_attention(q, k, v, w, options, causal);
      Tape by_segment;
      const Tensor parts = performer_attention(q, k, v, w, options, causal);
      EXPECT_EQ(by_segment.size(), 1u);
      const Gradients some = by_segment.backward(parts, dy);
      Tape tape;
      const Tensor whole = linear_attention(query_features(q, w, options),
                                            key_features(k, w, options).features, v, causal);
      const Gradients all = tape.backward(whole, dy);
      EXPECT_EQ(parts.shape(), Shape({1, 4, kLength, 6}));
      EXPECT_EQ(bytes_of(alone), bytes_of(parts));
      EXPECT_LT(relative_distance(parts, whole), 1e-4) << causal;
      for (const Tensor& x : {q, k, v}) {
        EXPECT_LT(relative_distance(some[x], all[x]), 1e-3) << causal << " " << x.shape()[1];
      }
    }
  }
}

// No doubling of the length costs more than twice as long: on a GPU the features of a call stay
// until they take a sixteenth of its memory.
TEST(Performer, GoesThroughAtOnceWhileAGpuHasRoom) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30, kTotal = 139 * kGiB;
  constexpr std::int64_t kRow = 4 * 256 * 2;  // 4 heads, 256 features of bf16
  const auto rows = [&](std::int64_t queries, std::int64_t keys, std::int64_t total) {
    return segment_rows_on_gpu({queries, kRow}, {keys, kRow}, total);
  };
  for (std::int64_t length = 1 << 12; length <= 1 << 21; length *= 2) {
    EXPECT_GE(rows(length, length, kTotal), length) << length;
  }
  EXPECT_EQ(rows(1 << 22, 1 << 22, kTotal), kTotal / 64 / (2 * kRow));
  // Both sides count, and each by its own length.
  const std::int64_t most = kGiB / 16 / kRow;
  EXPECT_GE(rows(most, 0, kGiB), most);
  EXPECT_LT(rows(most, 1, kGiB), most);
  EXPECT_GE(rows(most / 4, most - most / 4, kGiB), most);
  EXPECT_LT(rows(most / 2 + 1, most / 2, kGiB), most / 2);
  // A segment is never so small that it costs more to begin than to do.
  EXPECT_EQ(segment_rows_on_gpu({1000, kGiB}, {1000, kGiB}, kGiB), kFewestSegmentRows);
  EXPECT_EQ(segment_rows_in_cache(4 * 32), 4096);
  EXPECT_EQ(segment_rows_in_cache(1 << 20), kFewestSegmentRows);
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const Tensor q = Tensor::zeros({1, 2, 5, 4}), w = Tensor::zeros({8, 4});
  EXPECT_ERROR("directions must be f32 [features, 4]", query_features(q, Tensor::zeros({8, 3})));
  EXPECT_ERROR("queries [B, H, Sq, F]", linear_attention(q, q, Tensor::zeros({1, 2, 6, 4})));
  EXPECT_ERROR("not a multiple of", linear_attention(Tensor::zeros({1, 3, 5, 4}), q, q));
  EXPECT_ERROR("as many queries as keys",
               linear_attention(Tensor::zeros({1, 2, 3, 4}), q, q, true));
  EXPECT_ERROR("c [B, H, S, R]", causal_product(q, q, Tensor::zeros({1, 2, 6, 4})));
  EXPECT_ERROR("scale must be positive", query_features(q, w, {.scale = -1.0f}));
}

}  // namespace
}  // namespace qkv
