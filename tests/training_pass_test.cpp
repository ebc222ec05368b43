// A training pass: dropout that a seed decides, in forward and backward, and what attention tells
// of its scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/autograd.h"
#include "qkv/models/model.h"
#include "qkv/random.h"
#include "support/goldens.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::golden;

struct Example {
  std::unique_ptr<Model> model;
  ModelInput input;
  Tensor labels;

  explicit Example(const std::string& name) : model(load_model(golden(name), {.writable = true})) {
    std::vector<std::int64_t> ids, targets;
    for (std::int64_t i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 90 + 3);
    for (std::int64_t i = 0; i < 24; ++i) targets.push_back((i * 29 + 5) % 90 + 3);
    input.ids = Tensor::from(ids, {2, 12});
    const bool classifies = model->info().classes > 0 && name.find("classifier") != name.npos;
    labels = classifies ? Tensor::from(std::vector<std::int64_t>{1, 0}, {2})
                        : Tensor::from(targets, {2, 12});
  }
  double loss(std::uint64_t seed) const {
    const Tape tape;  // without one, layers would keep the weights they packed first
    nn::Training training{.seed = seed};
    return test::values_of(model->loss(input, labels, {.training = &training}))[0];
  }
};

double rate_of(const std::string& name) {  // what the golden's config says
  return name == "gpt2" || name.starts_with("bert") || name == "roberta" || name == "distilbert" ||
                 name == "longformer"
             ? 0.1
             : 0;
}

class TrainingPass : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingPass, DropsOutAsTheSeedSaysAndOnlyThen) {
  const Example example(GetParam());
  const double plain = test::values_of(example.model->loss(example.input, example.labels))[0];
  EXPECT_EQ(example.loss(7), example.loss(7));
  if (rate_of(GetParam()) > 0) {
    EXPECT_NE(example.loss(7), example.loss(8));
    EXPECT_NE(example.loss(7), plain);
    EXPECT_NEAR(example.loss(7), plain, 0.5 * plain);
  } else {
    EXPECT_EQ(example.loss(7), plain);
  }
}

// Forward and backward drop the same: the slope of the loss with a fixed seed, along the gradient.
TEST_P(TrainingPass, BackwardDropsWhatForwardDropped) {
  const Example example(GetParam());
  const auto gradients = [&] {
    nn::Training training{.seed = 7};
    Tape tape;
    return tape.backward(
        example.model->loss(example.input, example.labels, {.training = &training}));
  }();
  const std::vector<nn::Parameter> parameters = nn::parameters(*example.model);
  double squares = 0;
  for (const nn::Parameter& p : parameters) {
    if (!gradients.contains(p.value)) continue;
    for (const double g : test::values_of(gradients[p.value])) squares += g * g;
  }
  const double step = 2e-3 / std::sqrt(squares);  // of a length small against the weights
  const auto move = [&](double by) {
    for (const nn::Parameter& p : parameters) {
      if (!gradients.contains(p.value)) continue;
      const std::vector<double> g = test::values_of(gradients[p.value]);
      float* values = p.value.data<float>();
      for (std::size_t i = 0; i < g.size(); ++i) values[i] += static_cast<float>(by * g[i]);
    }
  };
  move(step);
  const double above = example.loss(7);
  move(-2 * step);
  const double below = example.loss(7);
  EXPECT_NEAR((above - below) / (2 * step), squares, 0.03 * squares);
}

INSTANTIATE_TEST_SUITE_P(Models, TrainingPass,
                         ::testing::Values("bart", "bert-classifier", "bert-masked-lm",
                                           "distilbert", "gemma2", "gpt2", "llama", "longformer",
                                           "marian", "mistral", "qwen3", "roberta", "t5",
                                           "t5-v1.1"),
                         [](const auto& which) {
                           std::string name = which.param;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

TEST(TrainingPassHealth, EveryAttentionTellsOfItsScores) {
  const Example example("marian");
  nn::Training training{.seed = 1, .statistics = Statistics::all};
  example.model->loss(example.input, example.labels, {.training = &training});
  std::vector<std::string> names;
  for (const nn::AttentionHealth& health : training.health) names.push_back(health.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("encoder.0.self", "encoder.1.self", "decoder.0.self",
                                     "decoder.0.cross", "decoder.1.self", "decoder.1.cross"));
  // The largest score of an encoder layer, by hand.
  const nn::AttentionHealth& first = training.health[0];
  const std::vector<double> q = test::values_of(first.queries), k = test::values_of(first.keys);
  const std::int64_t heads = first.queries.size(1), length = first.queries.size(2);
  const std::int64_t width = first.queries.size(3);
  const std::vector<double> told = test::values_of(first.statistics.max_logit);
  for (std::int64_t head = 0; head < 2 * heads; ++head) {
    double largest = -1e30;
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t j = 0; j < length; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < width; ++d) {
          score += q[(head * length + i) * width + d] * k[(head * length + j) * width + d];
        }
        largest = std::max(largest, score / std::sqrt(static_cast<double>(width)));
      }
    }
    EXPECT_NEAR(told[head], largest, 1e-5);
  }
}

TEST(TrainingPassStream, RunsInTheDtypeOfThePass) {
  const Example example("marian");
  nn::Training training{.dtype = DType::bf16};
  const Tensor memory = (*example.model)(example.input, {.training = &training}).memory;
  EXPECT_EQ(memory.dtype(), DType::bf16);
}

}  // namespace
}  // namespace qkv
