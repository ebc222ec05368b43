// Attention to int8 keys and values, and the cache that holds them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "expect_error.h"
#include "qkv/attention.h"
#include "qkv/autograd.h"
#include "qkv/cpu.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"
#include "qkv/random.h"
#include "support/goldens.h"
#include "support/targets.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;
using test::golden;
using test::largest_difference;
using test::on_every_target;
using test::values_of;

struct Case {
  Tensor q, k, v;
  Quantized keys, values;
  AttentionOptions options;

  Case(std::int64_t heads, std::int64_t key_heads, std::int64_t queries, std::int64_t length,
       std::int64_t size) {
    Generator random(static_cast<std::uint64_t>(queries * 1000 + length));
    q = random.normal({2, heads, queries, size}, 0, 1, DType::f32);
    k = random.normal({2, key_heads, length, size}, 0, 1, DType::f32);
    v = random.normal({2, key_heads, length, size}, 0, 1, DType::f32);
    keys = quantize(k);
    values = quantize(v);
    const auto rows = [&](const Tensor& scale) { return reshape(scale, {2, key_heads, length}); };
    options.mask = Mask::causal();
    options.key_scale = rows(keys.scale);
    options.value_scale = rows(values.scale);
  }

  Tensor attend() const { return attention(q, keys.values, values.values, options); }
  // The same with keys and values as f32 numbers.
  Tensor attend_wide() const {
    AttentionOptions plain = options;
    plain.key_scale = plain.value_scale = {};
    return attention(q, dequantize(keys), dequantize(values), plain);
  }
};

TEST(Int8Attention, IsThatOfTheNumbersTheBytesStandFor) {
  on_every_target([] {
    for (const std::int64_t queries : {1, 2, 3, 20}) {  // decode, and a copy in f32
      for (const std::int64_t length : {3, 20, 255, 257, 600}) {
        for (const std::int64_t size : {5, 16, 64, 80}) {
          for (const std::int64_t key_heads : {1, 2, 4}) {
            const Case c(4, key_heads, queries, length, size);
            EXPECT_LT(largest_difference(c.attend(), c.attend_wide()), 2e-6)
                << queries << " queries, " << length << " keys of " << size;
          }
        }
      }
    }
  });
}

// So many keys and heads that the keys of a chunk, which are products' depth, are as many as can
// be.
TEST(Int8Attention, ReadsALongCache) {
  on_every_target([] {
    for (const std::int64_t heads : {8, 16, 32}) {
      for (const std::int64_t length : {2100, 4096, 4113}) {
        const Case c(heads, 8, 1, length, 16);
        EXPECT_LT(largest_difference(c.attend(), c.attend_wide()), 2e-6)
            << heads << " heads, " << length << " keys";
      }
    }
  });
}

// Rounding errors of keys and values together: an int8 element is off by at most 1/254 of the
// largest of its row, and the weighted mean of many is off by less than that of one.
TEST(Int8Attention, IsNearThatOfTheKeysThemselves) {
  on_every_target([] {
    for (const std::int64_t queries : {1, 20}) {
      const Case c(4, 2, queries, 600, 64);
      AttentionOptions plain;
      plain.mask = Mask::causal();
      EXPECT_LT(largest_difference(c.attend(), attention(c.q, c.k, c.v, plain)), 0.03);
    }
  });
}

TEST(Int8Attention, TakesBf16Queries) {
  on_every_target([] {
    for (const std::int64_t queries : {1, 20}) {
      Case c(4, 2, queries, 300, 64);
      const Tensor wide = c.attend();
      c.q = to(c.q, DType::bf16);
      const Tensor y = c.attend();
      EXPECT_EQ(y.dtype(), DType::bf16);
      EXPECT_LT(largest_difference(y, wide), 0.03);
      // Beside the same queries in f32 only the result is rounded.
      c.q = to(c.q, DType::f32);
      EXPECT_LT(largest_difference(y, to(c.attend_wide(), DType::bf16)), 0.005);
    }
  });
}

TEST(Int8Attention, HiddenNanStaysHiddenAndSeenNanIsSeen) {
  on_every_target([] {
    for (const std::int64_t queries : {1, 20}) {
      Case c(2, 2, queries, 300, 16);
      const Tensor clean = c.attend();
      c.options.mask = c.options.mask & Mask::lengths(Tensor::full({2}, 290, {DType::i32}));
      c.options.mask.align = Align::top_left;
      c.options.mask.offset = 300 - queries;
      const Tensor before = c.attend();
      for (const std::int64_t hidden : {290, 299}) {
        c.options.key_scale.data<float>()[hidden] = std::nanf("");
        c.options.value_scale.data<float>()[hidden] = std::nanf("");
      }
      EXPECT_EQ(bytes_of(c.attend()), bytes_of(before));
      c.options.key_scale.data<float>()[3] = std::nanf("");
      EXPECT_TRUE(std::isnan(values_of(c.attend())[0]));
    }
  });
}

TEST(Int8Attention, WeightsCanBeLookedAt) {
  const Case c(4, 2, 3, 40, 16);
  AttentionOptions plain;
  plain.mask = Mask::causal();
  EXPECT_LT(largest_difference(attention_weights(c.q, c.keys.values, c.options),
                               attention_weights(c.q, dequantize(c.keys), plain)),
            1e-6);
}

TEST(Int8Attention, WhatDoesNotFitIsNamed) {
  const Case good(4, 2, 1, 40, 16);
  const auto error_of = [&](auto change) {
    Case c = good;
    change(c);
    return testing::error_of([&] { c.attend(); });
  };
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "value_scale is undefined",
                      error_of([](Case& c) { c.options.value_scale = {}; }));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "key_scale must be f32 [2, 2, 40]",
                      error_of([](Case& c) {
                        c.options.key_scale = Tensor::zeros({2, 2, 41});
                      }));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "k must be i8",
                      error_of([](Case& c) { c.keys.values = c.k; }));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "k must be f32",
                      error_of([](Case& c) { c.options.key_scale = c.options.value_scale = {}; }));
  Tape tape;
  EXPECT_ERROR("cannot be recorded", good.attend());
}

// --- the cache ---

Tensor ids_of(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(((first + i) * 37 + 11) % 90);
  return Tensor::from(ids, {1, count});
}

// Logits of the last of `count` tokens, the last five of which came one by one.
Tensor logits_with(const Model& model, std::optional<DType> dtype, std::int64_t count) {
  nn::KvCache cache(count, dtype);
  const ModelContext context{.cache = &cache, .last_logits_only = true};
  ModelOutput out = model({.ids = ids_of(0, count - 5)}, context);
  for (std::int64_t i = count - 5; i < count; ++i) out = model({.ids = ids_of(i, 1)}, context);
  return out.logits;
}

TEST(Int8Cache, LogitsAreNearThoseOfTheFullOne) {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen3", "gemma2"}) {
    const auto model = load_model(golden(name));
    const Tensor exact = logits_with(*model, {}, 25);
    double largest = 0;
    for (const double x : values_of(exact)) largest = std::max(largest, std::abs(x));
    EXPECT_LT(largest_difference(logits_with(*model, DType::bf16, 25), exact), 0.02 * largest);
    EXPECT_LT(largest_difference(logits_with(*model, DType::i8, 25), exact), 0.03 * largest)
        << name;
  }
}

TEST(Int8Cache, TakesLessMemory) {
  const Tensor x = Generator(1).normal({1, 2, 10, 64}, 0, 1, DType::f32);
  nn::KvCache wide(10), half(10, DType::bf16), bytes(10, DType::i8);
  for (nn::KvCache* cache : {&wide, &half, &bytes}) cache->append(0, x, x);
  EXPECT_EQ(half.bytes() * 2, wide.bytes());
  EXPECT_EQ(bytes.bytes(), wide.bytes() / 4 + 2 * 2 * 10 * sizeof(float));
}

TEST(Int8Cache, WindowsMoveAndRowsAreReordered) {
  // A window of 3 beside a cache that keeps everything: the same last three.
  nn::KvCache all(2000, DType::i8), window(2000, DType::i8);
  Generator random(3);
  nn::KvCache::View a, b;
  for (int i = 0; i < 600; ++i) {
    const Tensor x = random.normal({2, 2, 1, 8}, 0, 1, DType::f32);
    a = all.append(0, x, x);
    b = window.append(0, x, x, 3);
  }
  const auto last = [](const Tensor& x) { return slice(x, 2, x.size(2) - 3, x.size(2)); };
  EXPECT_LT(b.keys.size(2), 300);
  EXPECT_EQ(bytes_of(last(a.keys)), bytes_of(last(b.keys)));
  EXPECT_EQ(bytes_of(last(a.key_scale)), bytes_of(last(b.key_scale)));
  EXPECT_EQ(bytes_of(last(a.value_scale)), bytes_of(last(b.value_scale)));

  all.reorder({1, 1, 0});
  const Tensor x = random.normal({3, 2, 1, 8}, 0, 1, DType::f32);
  const nn::KvCache::View c = all.append(0, x, x);
  const auto row = [](const Tensor& t, std::int64_t i) {
    return bytes_of(slice(slice(t, 0, i, i + 1), 2, 0, 600));
  };
  EXPECT_EQ(row(c.keys, 0), row(a.keys, 1));
  EXPECT_EQ(row(c.keys, 2), row(a.keys, 0));
  EXPECT_EQ(row(c.key_scale, 1), row(a.key_scale, 1));
  EXPECT_EQ(row(c.value_scale, 2), row(a.value_scale, 0));
}

TEST(Int8Cache, GeneratesWithEveryDtype) {
  for (const char* name : {"llama", "t5", "bart"}) {
    const auto model = load_model(golden(name));
    for (const DType dtype : {DType::bf16, DType::i8}) {
      for (const std::int64_t beams : {1, 3}) {
        const std::vector<std::int64_t> never;
        const auto tokens =
            generate(*model, {{5, 6, 7, 8}},
                     {.max_new_tokens = 6, .beams = beams, .kv_dtype = dtype, .stop_ids = never});
        EXPECT_EQ(tokens[0].size(), 6u) << name;
      }
    }
  }
}

}  // namespace
}  // namespace qkv
