// Numbers at the ends of their range, wherever an integer is taken: an Error or a right result, and
// no arithmetic that overflows (which the undefined behaviour sanitizer watches for).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "expect_error.h"
#include "qkv/attention.h"
#include "qkv/linear_attention.h"
#include "qkv/long_attention.h"
#include "qkv/nn.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"
#include "qkv/random.h"

namespace qkv::test {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFarEdge = std::int64_t{1} << 40;

// Under a sanitizer an operator new without memory ends the program.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kNewThrows = false;
#else
constexpr bool kNewThrows = true;
#endif

const std::vector<std::int64_t>& extremes() {
  static const std::vector<std::int64_t> all{kLowest,
                                             kLowest + 1,
                                             kLowest / 2,
                                             -kFarEdge - 1,
                                             -kFarEdge,
                                             -kFarEdge + 1,
                                             INT32_MIN,
                                             -6,
                                             -2,
                                             -1,
                                             0,
                                             1,
                                             2,
                                             5,
                                             INT32_MAX,
                                             kFarEdge - 1,
                                             kFarEdge,
                                             kFarEdge + 1,
                                             kHighest / 16,
                                             kHighest / 2,
                                             kHighest - 1,
                                             kHighest};
  return all;
}

struct ExtremeInputs {
  Tensor q, k, v;
};
ExtremeInputs extreme_inputs() {
  Generator random(1);
  return {random.normal({1, 2, 3, 4}), random.normal({1, 2, 5, 4}), random.normal({1, 2, 5, 4})};
}

// The mask of one sequence as the header defines it, in integers that do not overflow.
Tensor allowed_pairs(const Mask& mask, std::int64_t offset, std::int64_t rows, std::int64_t keys) {
  __extension__ using Wide = __int128;
  Tensor pairs = Tensor::zeros({1, 1, rows, keys}, {DType::boolean});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const Wide position = Wide{i} + offset;
      const bool global =
          j < mask.global_first || (position >= 0 && position < std::min(mask.global_first, keys));
      const bool left = mask.left < 0 || position - mask.left <= j || global;
      const bool right = mask.right < 0 || j <= position + mask.right || global;
      pairs.data<bool>()[i * keys + j] = left && right && (!mask.causal_part || j <= position);
    }
  }
  return pairs;
}

void expect_as_allowed(const ExtremeInputs& in, const AttentionForward& got, const Mask& mask,
                       std::int64_t offset) {
  const AttentionForward expected = attention_forward(
      in.q, in.k, in.v, {.mask = Mask::allowed(allowed_pairs(mask, offset, 3, 5))});
  const std::vector<float> a = got.out.to_vector<float>(), b = expected.out.to_vector<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], 1e-5) << "offset " << offset << ", window " << mask.left << " "
                                  << mask.right << ", global " << mask.global_first;
  }
}

TEST(ExtremeNumbers, OfAMaskAreErrorsOrRight) {
  const ExtremeInputs in = extreme_inputs();
  std::mt19937_64 draw(7);
  const auto any = [&] { return extremes()[draw() % extremes().size()]; };
  int refused = 0, right = 0;
  for (int n = 0; n < 3000; ++n) {
    Mask mask;
    mask.causal_part = draw() % 2 == 0;
    if (draw() % 2 == 0) mask.offset = any();
    if (draw() % 2 == 0) mask.left = any();
    if (draw() % 2 == 0) mask.right = any();
    if (draw() % 4 == 0) mask.global_first = any();
    try {
      const AttentionForward got = attention_forward(in.q, in.k, in.v, {.mask = mask});
      ASSERT_NO_FATAL_FAILURE(expect_as_allowed(in, got, mask, mask.offset.value_or(2)));
      ++right;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(right, 300);
}

TEST(ExtremeNumbers, OfAnOffsetAreRefused) {
  const ExtremeInputs in = extreme_inputs();
  for (const std::int64_t offset : {kLowest, kLowest + 1, -kFarEdge, kFarEdge, kHighest}) {
    EXPECT_ERROR("mask.offset", attention(in.q, in.k, in.v, {.mask = Mask::at_offset(offset)}));
    EXPECT_ERROR("mask.offset", attention_weights(in.q, in.k, {.mask = Mask::at_offset(offset)}));
  }
  Mask mask;
  mask.global_first = kLowest;
  EXPECT_ERROR("global_first", attention(in.q, in.k, in.v, {.mask = mask}));
  EXPECT_ERROR("Mask::window", Mask::window(kLowest, 0));
  EXPECT_ERROR("Mask::global", Mask::global(kLowest));
}

TEST(ExtremeNumbers, OfOffsetsPerSequenceAreRight) {
  const ExtremeInputs in = extreme_inputs();
  for (const std::int32_t offset : {INT32_MIN, INT32_MIN + 1, -3, 0, 4, INT32_MAX}) {
    for (const Mask& part : {Mask::causal(), Mask::window(2, 1), Mask::window(kFarEdge - 1, 0)}) {
      const Mask mask = part & Mask::at_offset(Tensor::from(std::vector{offset}, {1}));
      const AttentionForward got = attention_forward(in.q, in.k, in.v, {.mask = mask});
      ASSERT_NO_FATAL_FAILURE(expect_as_allowed(in, got, mask, offset));
    }
  }
  for (const std::int32_t bad : {INT32_MIN, -1, 6, INT32_MAX}) {
    const Tensor one = Tensor::from(std::vector{bad}, {1});
    EXPECT_ERROR("key_lengths[0]", attention(in.q, in.k, in.v, {.mask = Mask::lengths(one)}));
    const Tensor x = reshape(in.q, {3, 2, 4});
    EXPECT_ERROR(
        "query_offsets",
        attention(x, x, x, {.mask = Mask::packed(Tensor::from(std::vector{0, bad, 3}, {3}))}));
  }
}

// Biases along diagonals far away: a finite bias that is the same for all keys, or an Error.
TEST(ExtremeNumbers, OfABiasAreErrorsOrFinite) {
  const ExtremeInputs in = extreme_inputs();
  const Tensor slopes = Tensor::full({2}, 0.5), table = Tensor::full({8, 2}, 0.25);
  int refused = 0, finite = 0;
  for (const std::int64_t offset : extremes()) {
    for (const std::int64_t distance : extremes()) {
      for (const bool both : {false, true}) {
        for (const Bias& bias : {Bias::alibi(slopes), Bias::relative(table, both, distance)}) {
          try {
            const Tensor out =
                attention(in.q, in.k, in.v, {.mask = Mask::at_offset(offset), .bias = bias});
            for (const float x : out.to_vector<float>()) ASSERT_TRUE(std::isfinite(x));
            ++finite;
          } catch (const Error&) {
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(finite, 100);
}

TEST(ExtremeNumbers, OfABucketAreErrorsOrWithinTheTable) {
  int refused = 0, within = 0;
  for (const std::int64_t relative : extremes()) {
    for (const std::int64_t buckets : extremes()) {
      for (const std::int64_t distance : extremes()) {
        for (const bool both : {false, true}) {
          try {
            const std::int64_t bucket = relative_bucket(relative, buckets, both, distance);
            ASSERT_GE(bucket, 0) << relative << " " << buckets << " " << distance;
            ASSERT_LT(bucket, buckets) << relative << " " << buckets << " " << distance;
            ++within;
          } catch (const Error&) {
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(within, 1000);
  EXPECT_EQ(relative_bucket(kLowest, 32, true, 128), 15);
  EXPECT_EQ(relative_bucket(kHighest, 32, true, 128), 31);
  EXPECT_EQ(relative_bucket(kHighest, 32, false, 128), 0);
}

TEST(ExtremeNumbers, OfBlocksOfWeightsAreAllThereIs) {
  const ExtremeInputs in = extreme_inputs();
  const Tensor all = attention_weights(in.q, in.k, {}, {.pool_rows = 3, .pool_keys = 5});
  for (const std::int64_t size : extremes()) {
    const WeightsSelection pooled{.pool_rows = size, .pool_keys = size};
    if (size < 1) {
      EXPECT_ERROR("pool_rows", attention_weights(in.q, in.k, {}, pooled));
    } else if (size >= 5) {
      EXPECT_EQ(attention_weights(in.q, in.k, {}, pooled).to_vector<float>(),
                all.to_vector<float>());
    }
    if (size >= 0 && size < 2) continue;
    EXPECT_ERROR("head", attention_weights(in.q, in.k, {}, {.heads = {size}}));
  }
}

TEST(ExtremeNumbers, OfViewsAreErrorsOrWithin) {
  const Tensor x = Tensor::zeros({3, 5});
  for (const std::int64_t a : extremes()) {
    for (const std::int64_t b : extremes()) {
      const bool fits = 0 <= a && a <= b && b <= 5;
      if (fits) {
        EXPECT_EQ(slice(x, 1, a, b).size(1), b - a);
      } else {
        EXPECT_ERROR("slice:", slice(x, 1, a, b));
      }
      if (!(a >= 0 && b >= 0 && a <= 5 && b <= 5 && a + b == 5)) {
        EXPECT_ERROR("split:", split(x, 1, {a, b}));
      }
      if (a != 3 && a != -1 && b != 5 && b != -1) {
        EXPECT_ERROR("", reshape(x, {a, b}));
      }
      const std::int64_t strides[] = {a, b};
      const Tensor one = Tensor::zeros({7}).view({1, 1}, strides, 3);
      EXPECT_EQ(contiguous(add(one, one)).numel(), 1);
      EXPECT_EQ(matmul(one, one).numel(), 1);
      const Tensor none = Tensor::zeros({7}).view({2, 0}, strides, 3);
      EXPECT_EQ(matmul(transpose(none, 0, 1), none).numel(), 0);
      EXPECT_EQ(sum(reshape(none, {0, 2}), {1}).numel(), 0);
    }
  }
  for (const int axis : {INT32_MIN, -3, 2, INT32_MAX}) {
    EXPECT_ERROR("axis", slice(x, axis, 0, 1));
    EXPECT_ERROR("axis", sum(x, {axis}));
    EXPECT_ERROR("axis", softmax(x, axis));
    EXPECT_ERROR("axis", concat({x}, axis));
  }
}

TEST(ExtremeNumbers, OfShapesAreRefusedBeforeTheyOverflow) {
  const std::int64_t most = kHighest / 16;
  const Tensor none = Tensor::zeros({0, most}), one = Tensor::zeros({1});
  EXPECT_ERROR("concat:", concat(std::vector<Tensor>(40, none), 1));
  EXPECT_ERROR("cannot be addressed", concat({none, none}, 1));
  EXPECT_ERROR("cannot be addressed", matmul(expand(one, {most / 4, 1}), expand(one, {1, 64})));
  // Views of one element that say they are enormous.
  const Tensor huge = expand(one, {most});
  if (kNewThrows) {
    EXPECT_THROW(huge.to_vector<float>(), OutOfMemory);
    EXPECT_THROW(huge.to_vector<double>(), OutOfMemory);
  }
  EXPECT_THROW(contiguous(huge), OutOfMemory);
  const Tensor batch = expand(reshape(one, {1, 1, 1, 1}), {std::int64_t{1} << 50, 1, 1, 1});
  if (kNewThrows) {
    EXPECT_THROW(attention(batch, batch, batch), OutOfMemory);
  }
  EXPECT_THROW(causal_product(batch, batch, batch), Error);
  EXPECT_THROW(performer_attention(batch, batch, batch, expand(reshape(one, {1, 1}), {1 << 20, 1})),
               Error);
  const Tensor empty = Tensor::zeros({1, 1, 0, most / 8});
  EXPECT_THROW(causal_product(empty, empty, empty), Error);
}

TEST(ExtremeNumbers, OfPagesAreRefused) {
  const Tensor one = Tensor::zeros({1, 1, 1, 1});
  const Tensor pool = expand(one, {1, 1, std::int64_t{1} << 50, 1});
  const Tensor table = expand(Tensor::zeros({1, 1}, {DType::i32}), {1, std::int64_t{1} << 20});
  AttentionOptions options{.mask = Mask::lengths(Tensor::full({1}, 3, {DType::i32}))};
  options.pages = table;
  EXPECT_ERROR("cannot be addressed", attention(one, pool, pool, options));

  nn::PagedCache cache({.layers = 1, .kv_heads = 1, .head_size = 2, .pages = 4, .page_size = 2});
  const std::int64_t a = cache.add(), b = cache.add();
  cache.extend({a}, 3);
  for (const std::int64_t count : extremes()) {
    if (count >= 0 && count <= 1) continue;
    EXPECT_ERROR("paged cache:", cache.extend({a, b}, count < 8 && count > 0 ? 9 : count));
  }
  EXPECT_EQ(cache.length(a), 3);
  EXPECT_EQ(cache.free_pages(), 2);
  EXPECT_ERROR("paged cache:", cache.length(kHighest));
  for (const std::int64_t size : {kLowest, std::int64_t{0}, std::int64_t{INT32_MAX}, kHighest}) {
    EXPECT_ERROR("",
                 nn::PagedCache(
                     {.layers = 1, .kv_heads = 1, .head_size = 2, .pages = 4, .page_size = size}));
  }
}

TEST(ExtremeNumbers, OfACacheAreErrorsOrRight) {
  const Tensor x = Tensor::full({1, 1, 2, 4}, 1);
  EXPECT_ERROR("capacity", nn::KvCache(kLowest));
  EXPECT_ERROR("", nn::KvCache(kHighest).append(0, x, x));
  EXPECT_ERROR("window", nn::KvCache(8).append(0, x, x, kLowest));
  nn::KvCache cache(8);
  EXPECT_EQ(cache.append(0, x, x, kHighest).keys.size(2), 2);
  for (const std::int64_t count : {kLowest, std::int64_t{-1}, std::int64_t{7}, kHighest}) {
    EXPECT_ERROR("cache:", cache.skip(count));
    EXPECT_ERROR("cache:", cache.sums(0, count));
  }
  EXPECT_EQ(cache.length(), 2);
  EXPECT_ERROR("layer", cache.append(SIZE_MAX, x, x));
  EXPECT_ERROR("memory", cache.memory(SIZE_MAX));
  EXPECT_ERROR("memory", cache.memory(0));
  for (const std::int64_t row : {kLowest, std::int64_t{-1}, std::int64_t{1}, kHighest}) {
    EXPECT_ERROR("row", cache.reorder({row}));
  }
  // Values that are not those of the keys would be written where nothing is.
  EXPECT_ERROR("values", cache.append(0, x, Tensor::zeros({5, 1, 2, 4})));
  EXPECT_ERROR("values", cache.append(0, x, Tensor::zeros({1, 1, 2, 9})));
}

TEST(ExtremeNumbers, OfIdsAndTargetsAreRefused) {
  const Tensor table = Tensor::zeros({3, 2}), logits = Tensor::zeros({1, 3});
  for (const std::int64_t id : extremes()) {
    const Tensor one = Tensor::from(std::vector{id}, {1});
    if (id >= 0 && id < 3) {
      EXPECT_EQ(embedding(one, table, kLowest).numel(), 2);
    } else {
      EXPECT_ERROR("embedding:", embedding(one, table, id));
      EXPECT_ERROR("cross_entropy:", cross_entropy(logits, one, {.ignore_index = -5}));
      EXPECT_TRUE(
          std::isnan(cross_entropy(logits, one, {.ignore_index = id}).to_vector<float>()[0]) ||
          cross_entropy(logits, one, {.ignore_index = id}).to_vector<float>()[0] == 0);
    }
  }
}

TEST(ExtremeNumbers, OfPositionsAreFiniteOrRefused) {
  const Tensor at = Tensor::from(extremes(), {static_cast<std::int64_t>(extremes().size())});
  for (const char* scaling : {"default", "linear", "dynamic", "yarn", "llama3"}) {
    const nn::Rotary rotary(
        {.head_size = 4, .scaling = scaling, .factor = 2, .original_positions = 16});
    for (const float x : rotary(at).cos.to_vector<float>()) ASSERT_TRUE(std::isfinite(x));
  }
  const nn::Rotary rotary({.head_size = 4});
  for (const std::int64_t limit : {kLowest, std::int64_t{-1}, kHighest}) {
    EXPECT_ERROR("rotary:", rotary(Tensor::zeros({1}, {DType::i64}), limit));
  }
  for (const std::int64_t size : {kLowest, std::int64_t{0}, std::int64_t{3}, kHighest - 1}) {
    EXPECT_ERROR("rotary:", nn::Rotary({.head_size = size}));
    EXPECT_ERROR("", nn::alibi_slopes(size == 3 ? 0 : size));
    EXPECT_ERROR("", nn::sinusoidal_positions(size == 0 ? -1 : size, size));
    EXPECT_ERROR("", orthogonal_directions(size == 3 ? 0 : size, 4, 1));
    EXPECT_ERROR("", orthogonal_directions(4, size == 3 ? 0 : size, 1));
    EXPECT_ERROR("group", quantize(Tensor::zeros({4}), size == 0 ? 1 : size));
  }
}

// The lengths of a mask are numbers of a caller: they say how much is written.
TEST(ExtremeNumbers, OfLengthsInALayerAreRefused) {
  nn::PerformerAttention layer({.hidden = 4, .heads = 2}, {.features = 8}, 0);
  nn::initialize(layer, 1);
  const Tensor x = Generator(1).normal({2, 3, 4});
  const auto with = [&](std::vector<std::int32_t> lengths) {
    nn::AttentionCall call;
    const auto count = static_cast<std::int64_t>(lengths.size());
    call.mask = Mask::lengths(Tensor::from(lengths, {count}));
    return layer(x, call);
  };
  EXPECT_EQ(with({3, 1}).shape(), (Shape{2, 3, 4}));
  for (const std::int32_t bad : {INT32_MIN, -1, 4, 1 << 20, INT32_MAX}) {
    EXPECT_ERROR("key_lengths[1]", with({3, bad}));
  }
  EXPECT_ERROR("key_lengths", with({3}));
}

TEST(ExtremeNumbers, OfLayersAreRefused) {
  for (const std::int64_t size : {kLowest, std::int64_t{-1}, kHighest / 2, kHighest}) {
    EXPECT_ERROR("", nn::MultiHeadAttention({.hidden = size, .heads = 1, .fused = true}));
    EXPECT_ERROR("", nn::MultiHeadAttention({.hidden = 8, .heads = 2, .kv_heads = size}));
    EXPECT_ERROR("", nn::MultiHeadAttention({.hidden = 8, .heads = 2, .head_size = size}));
  }
  nn::LongformerAttention layer({.hidden = 4, .heads = 1, .causal = true},
                                {.window = kHighest, .dilations = {kHighest}});
  nn::initialize(layer, 1);
  const Tensor x = Generator(1).normal({1, 3, 4});
  EXPECT_ERROR("", layer(x, {}));
  nn::KvCache cache(8);
  EXPECT_ERROR("longformer:", layer(x, {.cache = &cache}));
}

}  // namespace
}  // namespace qkv::test
