// Choosing ids from logits: by the rules, in proportion, and the same on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/sampling.h"
#include "expect_error.h"
#include "models/sampling.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

using Ids = std::vector<std::int64_t>;
constexpr double kDraws = 0x1p53;

Tensor rows_of(const std::vector<float>& values, std::size_t rows) {
  return Tensor::from(
      values, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(values.size() / rows)});
}

Ids chosen(const Tensor& logits, const Ids& draws, const SampleOptions& options, Device device,
           const Tensor& occurred = {}) {
  return sample(to(logits, device), Tensor::from(draws, {logits.size(0)}), options, occurred)
      .to_vector<std::int64_t>();
}

// One row, many draws: what each of them chooses.
Ids choices(const std::vector<float>& logits, const Ids& draws, const SampleOptions& options,
            Device device) {
  const auto rows = static_cast<std::int64_t>(draws.size());
  const auto width = static_cast<std::int64_t>(logits.size());
  return chosen(expand(Tensor::from(logits, {1, width}), {rows, width}), draws, options, device);
}

Ids grid(int count) {
  Ids draws;
  for (int i = 0; i < count; ++i) draws.push_back(static_cast<std::int64_t>(i * kDraws / count));
  return draws;
}

// The rules in float64, one after the other.
std::int64_t reference(const std::vector<float>& logits, double draw, const SampleOptions& o) {
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const double best = logits[order[0]];
  if (o.temperature == 0) return static_cast<std::int64_t>(order[0]);
  const auto weight = [&](std::size_t i) { return std::exp((logits[i] - best) / o.temperature); };
  std::erase_if(order, [&](std::size_t i) { return weight(i) < std::exp2(-kWeightBits); });
  if (o.top_k > 0) order.resize(std::min<std::size_t>(order.size(), o.top_k));
  double total = 0, reached = 0;
  for (const std::size_t i : order) total += weight(i);
  std::size_t kept = 0;
  while (kept < order.size() && (kept == 0 || reached < o.top_p * total)) {
    reached += weight(order[kept++]);
  }
  order.resize(kept);
  std::erase_if(order, [&](std::size_t i) { return weight(i) < o.min_p; });
  reached = 0;
  for (const std::size_t i : order) reached += weight(i);
  std::sort(order.begin(), order.end());
  double left = draw * reached;
  for (const std::size_t i : order) {
    left -= weight(i);
    if (left < 0) return static_cast<std::int64_t>(i);
  }
  return static_cast<std::int64_t>(order.back());
}

// Draws that fall so close to a boundary that float64 and whole numbers may differ are right either
// way.
bool is_right(std::int64_t id, const std::vector<float>& logits, double draw,
              const SampleOptions& options) {
  constexpr double kNear = 1e-7;
  if (id == reference(logits, draw, options)) return true;
  for (const double near : {-kNear, 0.0, kNear}) {
    for (const double share : {-kNear, 0.0, kNear}) {
      SampleOptions moved = options;
      if (moved.top_p < 1) moved.top_p += share;
      if (id == reference(logits, std::clamp(draw + near, 0.0, 1.0), moved)) return true;
    }
  }
  return false;
}

const std::vector<SampleOptions> kOptions{
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.2},
    {.temperature = 3, .top_k = 1},
    {.temperature = 3, .top_k = 7},
    {.temperature = 1, .top_k = 40},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 2, .top_p = 0.3},
    {.temperature = 1, .min_p = 0.05},
    {.temperature = 0.8, .top_k = 50, .top_p = 0.95, .min_p = 0.01},
    {.temperature = 1, .top_k = 1000000},
    {.temperature = 1e-300, .top_p = 0.5},
    {.temperature = 1e300, .top_p = 0.5},
};

std::string named(const SampleOptions& o) {
  return "temperature " + std::to_string(o.temperature) + " top_k " + std::to_string(o.top_k) +
         " top_p " + std::to_string(o.top_p) + " min_p " + std::to_string(o.min_p);
}

TEST(Sampling, CutsWhatItSays) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits{std::log(4.0f), std::log(2.0f), 0.0f, -0.0f};
  for (const Device device : devices()) {
    const auto possible = [&](const SampleOptions& options) {
      const Ids all = choices(logits, grid(5000), options, device);
      return std::set<std::int64_t>(all.begin(), all.end());
    };
    using Set = std::set<std::int64_t>;
    EXPECT_EQ(possible({.temperature = 0}), (Set{0}));
    EXPECT_EQ(possible({.temperature = 1}), (Set{0, 1, 2, 3}));
    EXPECT_EQ(possible({.temperature = 1, .top_k = 2}), (Set{0, 1}));
    EXPECT_EQ(possible({.temperature = 1, .top_k = 3}), (Set{0, 1, 2}));  // a tie: the lower id
    EXPECT_EQ(possible({.temperature = 1, .top_p = 0.49}), (Set{0}));
    EXPECT_EQ(possible({.temperature = 1, .top_p = 0.7}), (Set{0, 1}));
    EXPECT_EQ(possible({.temperature = 1, .top_p = 0.8}), (Set{0, 1, 2}));
    EXPECT_EQ(possible({.temperature = 1, .min_p = 0.3}), (Set{0, 1}));
    EXPECT_EQ(possible({.temperature = 1, .min_p = 1}), (Set{0}));
    EXPECT_EQ(possible({.temperature = 1, .top_k = 3, .top_p = 0.8}), (Set{0, 1}));
    // top_p is a share of what min_p has not cut yet, as in transformers.
    EXPECT_EQ(possible({.temperature = 1, .top_p = 0.6, .min_p = 0.3}), (Set{0, 1}));
  }
}

TEST(Sampling, DrawsInProportion) {
  const std::vector<float> logits{std::log(4.0f), std::log(2.0f), 0.0f, 0.0f};
  Ids draws;
  for (std::uint64_t i = 0; i < 40000; ++i) draws.push_back(sampling_draw(3, 0, i));
  for (const Device device : devices()) {
    std::vector<double> shares(4);
    for (const std::int64_t id : choices(logits, draws, {.temperature = 1}, device)) {
      shares[static_cast<std::size_t>(id)] += 1 / 40000.0;
    }
    EXPECT_NEAR(shares[0], 0.5, 0.01);
    EXPECT_NEAR(shares[1], 0.25, 0.01);
    EXPECT_NEAR(shares[3], 0.125, 0.01);
    for (const double temperature : {1.0, 0.5}) {
      int first = 0;
      for (const std::int64_t id : choices({1, 0}, grid(5000), {temperature}, device)) {
        first += id == 0 ? 1 : 0;
      }
      EXPECT_NEAR(first / 5000.0, 1 / (1 + std::exp(-1 / temperature)), 1e-3);
    }
  }
}

TEST(Sampling, WeightsArePowersOfTwo) {
  EXPECT_EQ(weight_at(0), std::uint64_t{1} << kWeightBits);
  for (double x = 0; x < 20; x += 0.001) {
    EXPECT_NEAR(static_cast<double>(weight_at(x)) * std::exp2(x - kWeightBits), 1, 1e-5) << x;
    EXPECT_LE(weight_at(x + 0.001), weight_at(x));
    if (x < 2) {
      EXPECT_NEAR(static_cast<double>(weight_at(x)) * std::exp2(x - kWeightBits), 1, 3e-9) << x;
    }
  }
  EXPECT_EQ(weight_at(std::nextafter(kWeightBits, 0.0)), 1u);
  EXPECT_EQ(weight_at(kWeightBits), 0u);
  EXPECT_EQ(weight_at(INFINITY), 0u);
  EXPECT_EQ(place_of(0, 1000), 0u);
  EXPECT_EQ(place_of((std::uint64_t{1} << kDrawBits) - 1, std::uint64_t{1} << 62),
            (std::uint64_t{1} << 62) - (1 << 9));
  EXPECT_EQ(place_of(std::uint64_t{1} << 52, 1000001), 500000u);
}

// Random logits of widths around every edge of the kernels.
TEST(Sampling, ChoosesAsTheReferenceDoes) {
  Generator random(11);
  for (const std::int64_t width : {1, 2, 31, 33, 1000, 1023, 1025, 4097, 50257}) {
    const std::vector<float> logits = random.normal({width}, 0, 3).to_vector<float>();
    Ids draws;
    for (std::uint64_t i = 0; i < 6; ++i) draws.push_back(sampling_draw(width, i, 5));
    draws.push_back(0);
    draws.push_back(static_cast<std::int64_t>(kDraws) - 1);
    for (const SampleOptions& options : kOptions) {
      for (const Device device : devices()) {
        const Ids got = choices(logits, draws, options, device);
        for (std::size_t i = 0; i < draws.size(); ++i) {
          EXPECT_TRUE(is_right(got[i], logits, static_cast<double>(draws[i]) / kDraws, options))
              << named(options) << " width " << width << " draw " << draws[i] << ": " << got[i]
              << " on " << to_string(device);
        }
      }
    }
  }
}

// The very same ids: ties, few distinct values, flat and peaked rows, penalties.
TEST(Sampling, AgreeOnCpuAndCuda) {
  if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
  Generator random(5);
  for (const std::int64_t width : {3, 700, 50257, 151936}) {
    const std::int64_t rows = width > 10000 ? 6 : 40;
    for (const float deviation : {0.0f, 0.01f, 2.0f, 30.0f}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor logits = random.normal({rows, width}, 0, deviation, dtype);
        Ids draws, ids;
        for (std::int64_t i = 0; i < rows; ++i) draws.push_back(sampling_draw(width, i, 1));
        for (std::int64_t i = 0; i < rows * 100; ++i) ids.push_back(i * 7919 % (width + 1) - 1);
        const Tensor occurred = Tensor::from(ids, {rows, 100});
        for (SampleOptions options : kOptions) {
          for (const double penalty : {1.0, 1.3}) {
            options.repetition_penalty = penalty;
            EXPECT_EQ(chosen(logits, draws, options, kGpu, occurred),
                      chosen(logits, draws, options, kCpu, occurred))
                << named(options) << " width " << width << " deviation " << deviation;
          }
        }
      }
    }
  }
}

TEST(Sampling, ARowOfABatchIsARowAlone) {
  Generator random(8);
  const Tensor logits = random.normal({9, 1537}, 0, 4);
  Ids draws;
  for (std::uint64_t i = 0; i < 9; ++i) draws.push_back(sampling_draw(1, i, 0));
  for (const Device device : devices()) {
    for (const SampleOptions& options : kOptions) {
      const Ids together = chosen(logits, draws, options, device);
      for (std::int64_t i = 0; i < 9; ++i) {
        EXPECT_EQ(chosen(slice(logits, 0, i, i + 1), {draws[i]}, options, device).front(),
                  together[i]);
      }
    }
  }
}

TEST(Sampling, RepetitionIsPenalizedOnce) {
  const Tensor logits = rows_of({2, -2, 1.5f, -1, -3, -1.5f}, 2);
  const Tensor occurred = Tensor::from(Ids{0, 0, 99, 0, -1, 0}, {2, 3});
  for (const Device device : devices()) {
    EXPECT_EQ(chosen(logits, {0, 0}, {.repetition_penalty = 1.3}, device, occurred), (Ids{0, 0}));
    // Twice, 2 would be 0.9 and -1 would be -2.25.
    EXPECT_EQ(chosen(logits, {0, 0}, {.repetition_penalty = 1.4}, device, occurred), (Ids{2, 0}));
    EXPECT_EQ(chosen(logits, {0, 0}, {.repetition_penalty = 1.6}, device, occurred), (Ids{2, 2}));
  }
  std::vector<float> row{2, -2, 1};
  penalize_repetition(row, Ids{0, 1, 1}, 2);
  EXPECT_EQ(row, (std::vector<float>{1, -4, 1}));
}

TEST(Sampling, BrokenRowsGiveNoIdAndLeaveOthersAlone) {
  const std::vector<std::vector<float>> rows{
      {kNan, kNan, kNan},   {1, 2, kNan},      {-kNan, 1, 2},     {-kInf, -kInf, -kInf},
      {kInf, 1, 2},         {1, 2, 3},         {-kInf, 2, -kInf}, {-3e38f, 3e38f, 0},
      {1e-45f, 0, -1e-45f}, {-0.0f, 0, -0.0f},
  };
  const Ids greedy{-1, -1, -1, -1, -1, 2, 1, 1, 0, 0};
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  for (const Device device : devices()) {
    for (const SampleOptions& options : kOptions) {
      const Ids got = chosen(rows_of(all, rows.size()), Ids(rows.size(), 0), options, device);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (options.temperature == 0 || greedy[i] < 0 || i == 6) {
          EXPECT_EQ(got[i], greedy[i]) << "row " << i << " " << named(options);
        } else {
          EXPECT_GE(got[i], 0);
          EXPECT_LT(got[i], 3);
        }
      }
    }
  }
}

TEST(Sampling, BadArgumentsAreNamed) {
  const Tensor logits = Tensor::zeros({2, 3}), draws = Tensor::zeros({2}, {DType::i64});
  EXPECT_ERROR("logits", sample(Tensor::zeros({2, 3}, {DType::i64}), draws));
  EXPECT_ERROR("logits", sample(Tensor::zeros({2, 0}), draws));
  EXPECT_ERROR("draws", sample(logits, {}));
  EXPECT_ERROR("draws", sample(logits, Tensor::zeros({3}, {DType::i64})));
  EXPECT_ERROR("draws", sample(logits, Tensor::zeros({2})));
  EXPECT_ERROR("draws", sample(logits, Tensor::full({2}, -1, {DType::i64})));
  EXPECT_ERROR("draws", sample(logits, Tensor::full({2}, 0x1p53, {DType::i64})));
  EXPECT_ERROR("occurred", sample(logits, draws, {}, Tensor::zeros({3, 3}, {DType::i64})));
  EXPECT_ERROR("temperature", sample(logits, draws, {.temperature = -1}));
  EXPECT_ERROR("temperature", sample(logits, draws, {.temperature = NAN}));
  EXPECT_ERROR("temperature", sample(logits, draws, {.temperature = INFINITY}));
  EXPECT_ERROR("top_k", sample(logits, draws, {.top_k = -1}));
  EXPECT_ERROR("top_p", sample(logits, draws, {.top_p = 0}));
  EXPECT_ERROR("min_p", sample(logits, draws, {.min_p = 1.5}));
  EXPECT_ERROR("repetition_penalty", sample(logits, draws, {.repetition_penalty = 0}));
  EXPECT_EQ(sample(Tensor::zeros({0, 3}), Tensor::zeros({0}, {DType::i64})).numel(), 0);
}

}  // namespace
}  // namespace qkv::test
