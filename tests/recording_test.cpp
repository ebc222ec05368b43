// Steps that a device records and replays: rows stored where the device says, lengths that only the
// device knows, and generation made of them.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "core/backend.h"
#include "expect_error.h"
#include "models/decoding.h"
#include "qkv/attention.h"
#include "qkv/long_attention.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/devices.h"
#include "support/goldens.h"
#include "support/values.h"

namespace qkv::test {
namespace {

Tensor number(std::int64_t value, Device device) {
  return to(Tensor::from(std::vector{value}, {1}), device);
}

class Recorded : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
  }
};

TEST(StoreRows, GoWhereTheDeviceSays) {
  Generator random(4);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t count : {1, 3}) {
      // Heads taken out of a wider projection, as a layer gives them.
      const Tensor x =
          transpose(slice(random.normal({2, count, 9, 5}, 0, 1, dtype), 2, 3, 6), 1, 2);
      for (const std::int64_t at :
           std::vector<std::int64_t>{0, 4, 7 - count, -1, 8 - count, 1 << 20}) {
        const Tensor before = random.normal({2, 3, 7, 5}, 0, 1, dtype);
        const bool fits = at >= 0 && at + count <= 7;
        const Tensor expected =
            fits ? concat({slice(before, 2, 0, at), x, slice(before, 2, at + count, 7)}, 2)
                 : before;
        for (const Device device : devices()) {
          Tensor data = to(contiguous(before), device);
          if (device == kCpu) data = add(data, Tensor::zeros({1}, {dtype}));  // a copy
          backend(device).store_rows(to(x, device), number(at, device), data);
          EXPECT_EQ(bytes_of(data), bytes_of(expected)) << at << " " << to_string(device);
        }
      }
    }
  }
}

// Steps go on without a recording where there can be none, and nowhere else: not where there is no
// memory, and not where something is wrong.
TEST(Recording, OnlyWhatCannotBeRecordedIsDoneWithout) {
  const Tensor x = Tensor::zeros({1});
  EXPECT_TRUE(if_recordable([&] { return x; }).defined());
  EXPECT_FALSE(if_recordable([&]() -> Tensor { throw NotRecordable("no"); }).defined());
  EXPECT_THROW(if_recordable([&]() -> Tensor { throw OutOfMemory("no"); }), OutOfMemory);
  EXPECT_THROW(if_recordable([&]() -> Tensor { throw Error("no"); }), Error);

  EXPECT_THROW(backend(kCpu).record([] {}), NotRecordable);
  const nn::StepPlace place{number(0, kCpu), Tensor::full({1}, 1, {DType::i32})};
  nn::KvCache cache(4);
  cache.place = place;
  EXPECT_THROW(cache.append(0, Tensor::zeros({1, 1, 1, 2}), Tensor::zeros({1, 1, 1, 2})),
               NotRecordable);
  EXPECT_THROW(cache.sums(0, 1), NotRecordable);
  const nn::Rotary rotary({.head_size = 4, .scaling = "dynamic", .original_positions = 8});
  EXPECT_THROW(rotary(place.position, 4), NotRecordable);
  nn::LongformerAttention layer({.hidden = 4, .heads = 1, .causal = true}, {.window = 2});
  nn::initialize(layer, 1);
  EXPECT_THROW(layer(Tensor::zeros({1, 1, 4}), {.cache = &cache}), NotRecordable);
}

// The same as lengths on the CPU, whichever kernel serves the call; wrong ones are cut.
TEST_F(Recorded, LengthsOnTheDeviceAreLengths) {
  Generator random(9);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t queries : {1, 5}) {
      for (const std::int64_t size : {64, 128}) {
        const Tensor q = to(random.normal({4, 8, queries, size}, 0, 1, dtype), kGpu);
        const Tensor k = to(random.normal({4, 2, 700, size}, 0, 1, dtype), kGpu);
        const Tensor v = to(random.normal({4, 2, 700, size}, 0, 1, dtype), kGpu);
        const std::vector<std::int32_t> given{5, 700, 1000, -3}, cut{5, 700, 700, 0};
        for (const bool causal : {false, true}) {
          const auto options = [&](const Tensor& lengths) {
            const Mask mask = Mask::lengths(lengths);
            return AttentionOptions{.mask = causal ? mask & Mask::causal() : mask};
          };
          const Tensor there = to(Tensor::from(given, {4}), kGpu);
          const AttentionForward got = attention_forward(q, k, v, options(there));
          const AttentionForward expected =
              attention_forward(q, k, v, options(Tensor::from(cut, {4})));
          EXPECT_EQ(bytes_of(got.out), bytes_of(expected.out)) << size << " " << queries;
          EXPECT_EQ(bytes_of(got.lse), bytes_of(expected.lse));
          EXPECT_EQ(values_of(slice(got.lse, 0, 3, 4))[0], -INFINITY);
        }
      }
    }
  }
  const Tensor q = to(random.normal({1, 1, 1, 64}), kGpu);
  EXPECT_ERROR("key_lengths", attention(q, q, q, {.mask = Mask::lengths(number(1, kGpu))}));
}

TEST_F(Recorded, AReplayReadsWhatIsThereThen) {
  Tensor x = to(Tensor::full({1000}, 1), kGpu), y;
  const Tensor weight = to(Tensor::full({1000}, 2), kGpu);
  const auto recording = backend(kGpu).record([&] {
    Tensor z = mul(x, weight);
    for (int i = 0; i < 5; ++i) z = add(z, weight);  // memory goes round
    y = z;
  });
  for (const double value : {3.0, 4.0, -1.0}) {
    backend(kGpu).fill(x, value);
    recording->replay();
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, static_cast<float>(2 * value + 10)));
  }
}

TEST_F(Recorded, WhatNeedsTheHostIsAnError) {
  const Tensor x = to(Tensor::full({10}, 1), kGpu);
  const auto recorded = [&](const std::function<void()>& body) { backend(kGpu).record(body); };
  EXPECT_ERROR("cannot be recorded", recorded([&] { to(Tensor::zeros({3}), kGpu); }));
  EXPECT_ERROR("", recorded([&] { x.to_vector<float>(); }));
  EXPECT_THROW(recorded([&] { to(Tensor::zeros({3}), kGpu); }), NotRecordable);
  EXPECT_THROW(recorded([&] { x.to_vector<float>(); }), NotRecordable);
  EXPECT_THROW(recorded([&] { backend(kGpu).begin_reading(x); }), NotRecordable);
  EXPECT_THROW(recorded([&] {
                 Tensor::empty({std::int64_t{1} << 46}, {DType::u8, kGpu});
               }),
               OutOfMemory);
  EXPECT_ERROR("already", recorded([&] { recorded([] {}); }));
  EXPECT_ERROR("records nothing", backend(kCpu).record([] {}));
  // And all is well afterwards.
  EXPECT_EQ(add(x, x).to_vector<float>(), std::vector<float>(10, 2));
}

// What other threads queue while one records is run, not recorded.
TEST_F(Recorded, AThreadRecordsItsOwnWork) {
  const Tensor x = to(Tensor::full({1000}, 1), kGpu);
  Tensor y, z;
  const auto recording = backend(kGpu).record([&] {
    y = add(x, x);
    std::thread([&] { z = mul(to(Tensor::full({1000}, 3), kGpu), x); }).join();
    y = add(y, x);
  });
  EXPECT_EQ(z.to_vector<float>(), std::vector<float>(1000, 3));
  recording->replay();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 3));
}

TEST_F(Recorded, StepsGiveWhatStepsGive) {
  for (const char* name : {"gpt2", "llama", "qwen3"}) {
    const auto model = load_model(golden(name), {.dtype = DType::bf16, .device = kGpu});
    const std::vector<std::vector<std::int64_t>> prompts{{5, 6, 7}, {8, 9, 10}};
    const DecodingOptions options{.max_new_tokens = 20};
    Decoding recorded(*model, prompts, options), plain(*model, prompts, options);
    plain.records = false;
    const auto close = [&](const Tensor& a, const Tensor& b, int step) {
      EXPECT_LT(relative_distance(a, b), 0.02) << name << " step " << step;
    };
    close(recorded.start(), plain.start(), 0);
    for (int step = 1; step < 12; ++step) {
      const std::vector<std::int64_t> tokens{11 + step, 30 - step};
      close(recorded.step(tokens), plain.step(tokens), step);
    }
    // A sequence ends: what was recorded is of no use, and the next step records anew.
    recorded.reorder({1});
    plain.reorder({1});
    for (int step = 12; step < 18; ++step) close(recorded.step({step}), plain.step({step}), step);
    const bool decodes =
        attention_kernels(to(Tensor::zeros({1, 1, 1, 64}, {DType::bf16}), kGpu),
                          to(Tensor::zeros({1, 1, 99, 64}, {DType::bf16}), kGpu),
                          to(Tensor::zeros({1, 1, 99, 64}, {DType::bf16}), kGpu),
                          {.mask = Mask::lengths(to(Tensor::full({1}, 5, {DType::i32}), kGpu))})
            .forward == "decode";
    EXPECT_EQ(recorded.records, decodes) << name;
  }
}

}  // namespace
}  // namespace qkv::test
