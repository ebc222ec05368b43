// What only a GPU can get wrong; the operators themselves are held to float64 in ops_test.cpp and
// the attention tests.
#include <gtest/gtest.h>

#include <cmath>

#include "core/backend.h"
#include "expect_error.h"
#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/ops.h"
#include "qkv/optim.h"
#include "qkv/random.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/goldens.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      backend(kGpu);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void TearDown() override { set_test_device(kCpu); }
};

TEST_F(Cuda, CopiesBetweenEveryDtypeAndLayout) {
  constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16,    DType::i32,
                            DType::i64, DType::u8,   DType::boolean};
  // Small whole numbers: every dtype but bool holds them.
  std::vector<float> numbers;
  for (int i = 0; i < 5 * 6 * 7; ++i) numbers.push_back(static_cast<float>(i % 100));
  const Tensor start = Tensor::from(numbers, {5, 6, 7});
  for (const DType from : kAll) {
    const Tensor here = to(start, from);
    for (const DType into : kAll) {
      const std::vector<double> expected = values_of(to(permute(here, {2, 0, 1}), into));
      const Tensor there = to(permute(on_device(here, kGpu), {2, 0, 1}), into);
      EXPECT_EQ(there.device(), kGpu);
      EXPECT_EQ(values_of(there), expected) << to_string(from) << " to " << to_string(into);
      EXPECT_EQ(values_of(contiguous(there)), expected);
    }
  }
}

// Rows that lie side by side move in runs of up to 16 bytes, as far as where they begin and how
// long they are allows: slices that begin and end anywhere, out of a wider tensor and into one.
TEST_F(Cuda, CopiesRowsOfEveryWidthFromAndToAnywhere) {
  constexpr std::int64_t kWidth = 48;
  std::vector<float> numbers;
  for (int i = 0; i < 2 * 3 * 5 * kWidth; ++i) numbers.push_back(static_cast<float>(i % 251));
  const Tensor start = Tensor::from(numbers, {2, 3, 5, kWidth});
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    const Tensor here = to(start, dtype), there = on_device(here, kGpu);
    for (const std::int64_t begin : {0, 1, 2, 4, 8, 12, 16}) {
      for (const std::int64_t width : {1, 2, 4, 7, 8, 16, 24, 32}) {
        const auto part = [&](const Tensor& x) {
          return permute(slice(x, 3, begin, begin + width), {0, 2, 1, 3});
        };
        const std::string what = to_string(dtype) + " from " + std::to_string(begin) + ", " +
                                 std::to_string(width) + " wide";
        EXPECT_EQ(values_of(contiguous(part(there))), values_of(contiguous(part(here)))) << what;
        const auto joined = [&](const Tensor& x) {
          return concat({slice(x, 3, 0, begin + 1), part(permute(x, {0, 2, 1, 3})), x}, 3);
        };
        EXPECT_EQ(values_of(joined(there)), values_of(joined(here))) << what;
        const auto repeated = [&](const Tensor& x) {
          return contiguous(
              expand(slice(slice(x, 3, begin, begin + width), 1, 1, 2), {2, 3, 5, width}));
        };
        EXPECT_EQ(values_of(repeated(there)), values_of(repeated(here))) << what;
      }
    }
  }
}

TEST_F(Cuda, TellsWhatItsTensorsHold) {
  synchronize(kGpu);
  reset_peak_memory(kGpu);
  const MemoryUse before = memory_use(kGpu);
  constexpr std::size_t kBytes = 64 << 20;
  {
    const Tensor held = Tensor::zeros({kBytes}, {DType::u8, kGpu});
    EXPECT_EQ(memory_use(kGpu).now, before.now + kBytes);
  }
  synchronize(kGpu);
  EXPECT_EQ(memory_use(kGpu).now, before.now);
  EXPECT_EQ(memory_use(kGpu).peak, before.now + kBytes);
  reset_peak_memory(kGpu);
  EXPECT_EQ(memory_use(kGpu).peak, before.now);
  EXPECT_GT(before.total, before.now + kBytes);
}

// Keys that come again and again change nothing: n rounds through a sequence give each of its rows
// what one round gives, gradients included. So many rounds that features take more than a sixteenth
// of the memory go through in segments, fewer at once.
TEST_F(Cuda, PerformerOfAnyLengthGivesTheSame) {
  constexpr std::int64_t kRound = 4096, kSize = 32, kFeatures = 1024;
  constexpr auto kRow = static_cast<std::int64_t>(2 * kFeatures * sizeof(bf16));  // of q and k
  const auto total = static_cast<std::int64_t>(memory_use(kGpu).total);
  Generator random(6);
  const auto drawn = [&] {
    return to(random.normal({1, 1, kRound, kSize}, 0, 1, DType::bf16), kGpu);
  };
  const Tensor q = drawn(), k = drawn(), v = drawn(), dy = drawn();
  const Tensor w = to(orthogonal_directions(kFeatures, kSize, 5), kGpu);
  Tensor y;
  const Gradients expected = [&] {
    Tape tape;
    y = performer_attention(q, k, v, w);
    return tape.backward(y, dy);
  }();
  for (const bool whole : {true, false}) {
    const std::int64_t rounds = total / (whole ? 64 : 12) / (kRound * kRow) + 1;
    const auto repeated = [&](const Tensor& x) {
      return contiguous(
          reshape(expand(x, {1, rounds, kRound, kSize}), {1, 1, rounds * kRound, kSize}));
    };
    const auto last = [&](const Tensor& x) {
      return slice(x, 2, (rounds - 1) * kRound, rounds * kRound);
    };
    const Tensor long_q = repeated(q), long_k = repeated(k), long_v = repeated(v);
    const Tensor long_dy = repeated(dy);
    Tape tape;
    const Tensor long_y = performer_attention(long_q, long_k, long_v, w);
    EXPECT_EQ(tape.size() == 1, !whole) << tape.size();
    const Gradients gradients = tape.backward(long_y, long_dy);
    const auto near = [&](const Tensor& got, const Tensor& wanted, const char* what) {
      const TapePause pause;
      EXPECT_LT(relative_distance(last(got), wanted), 0.05) << what << " " << whole;
      EXPECT_LT(relative_distance(slice(got, 2, 0, kRound), wanted), 0.05) << what << " " << whole;
    };
    near(long_y, y, "y");
    near(gradients[long_q], expected[q], "dq");
    near(gradients[long_k], expected[k], "dk");
    near(gradients[long_v], expected[v], "dv");
  }
}

TEST_F(Cuda, RunsOutOfMemoryWithAnErrorAndGoesOn) {
  EXPECT_ERROR("out of memory", Tensor::empty({std::int64_t{1} << 46}, {DType::u8, kGpu}));
  const Tensor x = Tensor::full({1000}, 3, {DType::f32, kGpu});
  EXPECT_EQ(sum(x).to_vector<float>()[0], 3000);
}

TEST_F(Cuda, RefusesADeviceThatIsNotThere) {
  EXPECT_ERROR("cuda:63", Tensor::empty({1}, {DType::f32, {DeviceType::cuda, 63}}));
}

TEST_F(Cuda, MakesNanOfIdsAndTargetsThatOnlyTheDeviceSees) {
  const Tensor table = to(Tensor::full({4, 3}, 1), kGpu);
  const Tensor ids = to(Tensor::from(std::vector<std::int64_t>{0, 4, -1}, {3}), kGpu);
  const std::vector<double> rows = values_of(embedding(ids, table));
  EXPECT_EQ(rows[0], 1);
  for (int i = 3; i < 9; ++i) EXPECT_TRUE(std::isnan(rows[i])) << i;
  const Tensor logits = to(Tensor::full({3, 4}, 1), kGpu);
  EXPECT_TRUE(std::isnan(values_of(cross_entropy(logits, ids))[0]));
  // Ids on the CPU are looked at before they leave.
  EXPECT_ERROR("id 4", embedding(to(ids, kCpu), table));
}

// On a Hopper GPU; others have the general kernels only.
TEST_F(Cuda, TellsOfScoresInItsFastKernel) {
  const Tensor x = to(Generator(1).normal({2, 4, 300, 64}, 0, 1, DType::bf16), kGpu);
  const auto kernel = [&](Statistics statistics) {
    return attention_kernels(x, x, x, {.statistics = statistics}).forward;
  };
  if (kernel(Statistics::none) != "sm90") GTEST_SKIP() << kernel(Statistics::none);
  EXPECT_EQ(kernel(Statistics::max_logit), "sm90");
  EXPECT_EQ(kernel(kRowStatistics), "sm90");
  EXPECT_EQ(kernel(Statistics::all), "sm90");
  const Tensor sinks = to(Generator(2).normal({4}), kGpu);
  EXPECT_EQ(attention_kernels(x, x, x, {.sinks = sinks, .statistics = kRowStatistics}).forward,
            "sm90");
}

TEST_F(Cuda, GivesTheSameBitsEveryTime) {
  AttentionCase c;
  c.heads = 4, c.key_heads = 2, c.queries = 190, c.keys = 205, c.head_size = 64;
  c.causal = true, c.dropout = 0.1f, c.buckets = 32, c.statistics = Statistics::all;
  for (const DType dtype : kFloats) {
    const AttentionInputs in = make_inputs(c, dtype);
    set_test_device(kGpu);
    const AttentionRun first = run_attention(in);
    for (int i = 0; i < 3; ++i) expect_same_bits(first, run_attention(in));
    set_test_device(kCpu);
  }
  // Many positions of one row: their sum has one order.
  Generator random(3);
  const Tensor dy = to(random.normal({5000, 40}), kGpu);
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 5000; ++i) ids.push_back(i % 7 == 0 ? i % 13 : 5);
  const auto gradient = [&] {
    Tape tape;
    const Tensor table = to(Tensor::zeros({13, 40}), kGpu);
    const Tensor y = embedding(Tensor::from(ids, {5000}), table);
    return bytes_of(tape.backward(y, dy)[table]);
  };
  const std::vector<std::uint8_t> once = gradient();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gradient(), once);
}

// The same seed draws the same tokens, as far as the logits agree.
TEST_F(Cuda, GeneratesAsTheCpuDoes) {
  for (const char* name : {"gpt2", "llama", "t5"}) {
    const auto generated = [&](Device device, const GenerateOptions& options) {
      const auto model = load_model(golden(name), {.dtype = DType::f32, .device = device});
      return generate(*model, {{5, 6, 7}, {8, 9, 10}, {11, 12}}, options);
    };
    for (const std::uint64_t seed : {1, 2}) {
      const GenerateOptions options{.max_new_tokens = 12,
                                    .temperature = 1.2,
                                    .top_k = 40,
                                    .top_p = 0.95,
                                    .repetition_penalty = 1.1,
                                    .seed = seed};
      EXPECT_EQ(generated(kGpu, options), generated(kCpu, options)) << name;
    }
    EXPECT_EQ(generated(kGpu, {.max_new_tokens = 12}), generated(kCpu, {.max_new_tokens = 12}));
    for (const std::int64_t beams : {1, 3}) {
      const GenerateOptions processed{.max_new_tokens = 12,
                                      .min_new_tokens = 6,
                                      .repetition_penalty = 1.1,
                                      .no_repeat_ngram_size = 2,
                                      .suppress_tokens = std::vector<std::int64_t>{15, 40, 46},
                                      .beams = beams};
      EXPECT_EQ(generated(kGpu, processed), generated(kCpu, processed)) << name << " " << beams;
    }
  }
}

// Ten steps of AdamW on the whole of a small model, on both devices.
TEST_F(Cuda, TrainsAsTheCpuDoes) {
  const std::string folder = golden("gpt2");
  const Checkpoint expected = Checkpoint::open(folder + "/expected.safetensors");
  const auto losses = [&](Device device) {
    const auto model =
        load_model(folder, {.dtype = DType::f32, .writable = true, .device = device});
    std::vector<Tensor> parameters;
    for (const nn::Parameter& p : nn::parameters(*model)) parameters.push_back(p.value);
    AdamW adamw(parameters, {.lr = 1e-3, .clip_norm = 1});
    std::vector<double> all;
    for (int step = 0; step < 10; ++step) {
      Tape tape;
      const Tensor loss = model->loss({.ids = expected["in.input_ids"]}, expected["in.labels"]);
      all.push_back(values_of(loss)[0]);
      adamw.step(tape.backward(loss));
    }
    return all;
  };
  const std::vector<double> here = losses(kCpu), there = losses(kGpu);
  EXPECT_LT(here.back(), here.front());
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_NEAR(there[i], here[i], 2e-4) << "step " << i;
}

}  // namespace
}  // namespace qkv::test
