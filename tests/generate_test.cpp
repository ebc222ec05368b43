// Generation: what is chosen, when it ends, what a batch and a seed may not change.
#include "qkv/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "expect_error.h"
#include "models/sampling.h"
#include "qkv/error.h"
#include "support/generation.h"
#include "support/goldens.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using Ids = std::vector<std::int64_t>;
using test::golden;

TEST(Generate, ABatchIsItsSequences) {
  for (const std::string name : {"gpt2", "llama", "mistral", "gemma2", "bart", "t5"}) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const std::vector<Ids> prompts{{5, 6, 7, 8, 9}, {10, 11}, {12, 13, 14}};
    const GenerateOptions options{.max_new_tokens = 12, .stop_ids = Ids{}};
    const std::vector<Ids> together = generate(*model, prompts, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(generate(*model, {prompts[i]}, options).front(), together[i]);
      EXPECT_EQ(together[i].size(), 12u);
    }
  }
}

TEST(Generate, EndedSequencesLeaveTheBatch) {
  const auto model = load_model(golden("gpt2"));
  const std::vector<Ids> prompts{{5, 6, 7, 8, 9}, {10, 11}, {12, 13, 14}};
  const std::vector<Ids> whole =
      generate(*model, prompts, {.max_new_tokens = 12, .stop_ids = Ids{}});
  const std::int64_t stop = whole[1][3];
  const std::vector<Ids> cut =
      generate(*model, prompts, {.max_new_tokens = 12, .stop_ids = Ids{stop}});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Ids expected;
    for (const std::int64_t token : whole[i]) {
      expected.push_back(token);
      if (token == stop) break;
    }
    EXPECT_EQ(cut[i], expected);
  }
}

TEST(Generate, StreamsAndStopsWhenTold) {
  const auto model = load_model(golden("llama"));
  std::vector<Ids> streamed(2);
  GenerateOptions options{.max_new_tokens = 10, .stop_ids = Ids{}};
  options.on_token = [&](std::size_t sequence, std::int64_t token) {
    streamed[sequence].push_back(token);
    return !(sequence == 1 && streamed[1].size() == 4);
  };
  const std::vector<Ids> got = generate(*model, {{5, 6}, {7}}, options);
  EXPECT_EQ(got, streamed);
  EXPECT_EQ(got[0].size(), 10u);
  EXPECT_EQ(got[1].size(), 4u);
}

TEST(Generate, ASeedDecides) {
  const auto model = load_model(golden("gpt2"));
  const auto with_seed = [&](std::uint64_t seed) {
    return generate(*model, {{1, 2, 3}},
                    {.max_new_tokens = 20, .temperature = 1.5, .seed = seed, .stop_ids = Ids{}});
  };
  EXPECT_EQ(with_seed(1), with_seed(1));
  EXPECT_NE(with_seed(1), with_seed(2));
}

TEST(Generate, StopsWherePositionsEnd) {
  const auto model = load_model(golden("gpt2"));  // 64 positions
  const std::vector<Ids> got =
      generate(*model, {Ids(60, 1)}, {.max_new_tokens = 100, .stop_ids = Ids{}});
  EXPECT_EQ(got.front().size(), 5u);  // the last one is predicted from position 64
  EXPECT_THROW(generate(*model, {Ids(65, 1)}), Error);
}

// Beside a longer prompt, too: when that one has no position left, the others go on without it.
TEST(Generate, EachSequenceHasItsOwnPositions) {
  Ids long_one, middle;
  for (std::int64_t i = 0; i < 60; ++i) long_one.push_back((i * 7 + 3) % 90);
  for (std::int64_t i = 0; i < 30; ++i) middle.push_back((i * 5 + 3) % 90);
  const std::vector<Ids> prompts{long_one, {5, 6}, middle};
  for (const char* name : {"gpt2", "llama"}) {  // 64 and 128 positions
    const auto model = load_model(golden(name));
    const auto positions = static_cast<std::size_t>(model->info().max_positions);
    for (const std::int64_t beams : {1, 3}) {
      SCOPED_TRACE(std::string(name) + ", beams " + std::to_string(beams));
      const GenerateOptions options{.max_new_tokens = 200, .beams = beams, .stop_ids = Ids{}};
      const std::vector<Ids> together = generate(*model, prompts, options);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(together[i].size(), positions - prompts[i].size() + 1);
        EXPECT_EQ(together[i], generate(*model, {prompts[i]}, options).front());
      }
    }
  }
}

TEST(Generate, OnlyAsManyAsWantedWherePositionsEndForOthers) {
  const auto model = load_model(golden("gpt2"));  // 64 positions
  GenerateOptions options{.max_new_tokens = 9, .stop_ids = Ids{}};
  int steps = 0;
  options.on_step = [&] { return ++steps > 0; };
  const std::vector<Ids> got = generate(*model, {Ids(60, 1), {5, 6}}, options);
  EXPECT_EQ(got[0].size(), 5u);
  EXPECT_EQ(got[1].size(), 9u);
  EXPECT_EQ(steps, 8);
}

TEST(Generate, BeamsFindWhatGreedyMisses) {
  const auto model = load_model(golden("gpt2"));
  const auto score = [&](const Ids& prompt, const Ids& tokens) {
    Ids all = prompt;
    all.insert(all.end(), tokens.begin(), tokens.end());
    const Tensor logits =
        (*model)({.ids = Tensor::from(all, {1, static_cast<std::int64_t>(all.size())})}).logits;
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto at = static_cast<std::int64_t>(prompt.size() + t - 1) * 96;
      const std::span<const float> row(logits.data<float>() + at, 96);
      sum += row[static_cast<std::size_t>(tokens[t])] - log_sum_exp(row);
    }
    return sum;
  };
  const Ids prompt{4, 8, 15};
  const Ids greedy = generate(*model, {prompt}, {.max_new_tokens = 10, .stop_ids = Ids{}}).front();
  const Ids beam =
      generate(*model, {prompt}, {.max_new_tokens = 10, .beams = 8, .stop_ids = Ids{}}).front();
  EXPECT_EQ(beam.size(), greedy.size());
  EXPECT_GE(score(prompt, beam), score(prompt, greedy) - 1e-6);
}

// Prompts of a batch end at different steps, and their beams do not mix.
TEST(Generate, BeamsOfABatchAreThoseOfEachAlone) {
  const std::vector<Ids> prompts{{4, 8, 15, 16}, {23, 42}, {7, 7, 7, 7, 7, 7, 7}, {61, 5, 3}};
  for (const char* name : {"marian", "bart", "t5", "gpt2", "llama"}) {
    const auto model = load_model(golden(name));
    const GenerateOptions options{.max_new_tokens = 12, .beams = 4, .stop_ids = Ids{1, 2, 40, 41}};
    const std::vector<Ids> together = generate(*model, prompts, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i], generate(*model, {prompts[i]}, options).front()) << name << " " << i;
    }
  }
}

// What transformers 5.23 generates: it penalizes log-probabilities, and what was read counts.
TEST(Generate, BeamsArePenalizedByTheirLogProbabilities) {
  struct Case {
    const char* name;
    Ids prompt, expected;
  };
  const std::vector<Case> cases{{"bart", {12, 38}, {12, 41, 41, 46, 46, 46, 46, 46}},
                                {"marian", {12, 38, 9}, {68, 79, 2, 2, 2, 70, 92, 39}},
                                {"gpt2", {4, 8, 15}, {65, 31, 19, 36, 79, 54, 0}},
                                {"llama", {4, 8, 15}, {34, 45, 66, 24, 93, 80, 79, 1}},
                                {"llama", {50, 51}, {49, 39, 66, 93, 33, 79, 42, 45}},
                                {"qwen3", {50, 51}, {7, 5, 8, 9, 84, 35, 61, 94}}};
  for (const auto& [name, prompt, expected] : cases) {
    const GenerateOptions options{.max_new_tokens = 8, .repetition_penalty = 1.3, .beams = 3};
    EXPECT_EQ(generate(*load_model(golden(name)), {prompt}, options).front(), expected) << name;
  }
}

TEST(Generate, ACheckpointMayForceTheFirstAndTheLastToken) {
  for (const char* name : {"bart", "t5", "gpt2"}) {
    const auto model = test::with_generation(
        name, R"({"forced_bos_token_id": 5, "forced_eos_token_id": [60, 7]})");
    const auto plain = load_model(golden(name));
    // A decoder that reads more than one token has its first token behind it.
    const bool is_decoder = model->info().kind == ModelKind::decoder;
    for (const std::int64_t beams : {1, 3}) {
      for (const double temperature : {0.0, 1.0}) {
        SCOPED_TRACE(std::string(name) + ", beams " + std::to_string(beams));
        const GenerateOptions options{
            .max_new_tokens = 6, .temperature = temperature, .beams = beams, .stop_ids = Ids{}};
        const std::vector<Ids> got = generate(*model, {{12, 38, 9}, {11}}, options);
        for (const Ids& ids : got) {
          EXPECT_EQ(ids.size(), 6u);
          EXPECT_EQ(ids.back(), 7);
        }
        EXPECT_EQ(got[1].front(), 5);
        if (!is_decoder) {
          EXPECT_EQ(got[0].front(), 5);
        } else {
          EXPECT_EQ(got[0].front(), generate(*plain, {{12, 38, 9}}, options)[0].front());
        }
      }
    }
    EXPECT_EQ(generate(*model, {{11}}, {.max_new_tokens = 1}).front(), Ids{7});
  }
}

TEST(Generate, GenerationConfigDecidesAloneWhatIsForced) {
  const std::string config = R"({"model_type": "t5", "vocab_size": 8, "d_model": 4, "d_kv": 2,
    "num_layers": 1, "num_heads": 2, "d_ff": 4, "bos_token_id": 3, "forced_eos_token_id": 2})";
  EXPECT_EQ(make_model(config)->info().generation.forced_eos_ids, Ids{2});
  EXPECT_EQ(make_model(config)->info().generation.forced_bos_id, -1);
  const std::string older = config.substr(0, config.size() - 1);
  EXPECT_EQ(make_model(older + R"(, "force_bos_token_to_be_generated": true})")
                ->info()
                .generation.forced_bos_id,
            3);
  EXPECT_ERROR("forced_eos_token_id must be an integer from 0 to 7, got 8",
               make_model(std::string(older).replace(older.rfind('2'), 1, "8") + "}"));

  const testing::TemporaryFolder folder;
  const std::string path = folder.path("model");
  const auto load_with = [&](const std::string& generation) {
    save_model(*make_model(config), path);
    std::ofstream(path + "/generation_config.json") << generation;
    return load_model(path);
  };
  EXPECT_TRUE(load_with("{}")->info().generation.forced_eos_ids.empty());
  EXPECT_TRUE(
      load_with(R"({"forced_eos_token_id": null})")->info().generation.forced_eos_ids.empty());
  const auto model = load_with(R"({"forced_eos_token_id": 4})");
  EXPECT_EQ(model->info().generation.forced_eos_ids, Ids{4});
  save_model(*model, folder.path("again"));  // what is forced goes with the model
  EXPECT_EQ(load_model(folder.path("again"))->info().generation.forced_eos_ids, Ids{4});
  for (const char* broken :
       {"{", "[]", R"({"forced_eos_token_id": "last"})", R"({"forced_bos_token_id": [1, 2]})"}) {
    EXPECT_ERROR("model/generation_config.json: ", load_with(broken));
  }
}

TEST(Generate, AStepMayBeTheLast) {
  const auto model = load_model(golden("gpt2"));
  for (const std::int64_t beams : {1, 3}) {
    const GenerateOptions all{.max_new_tokens = 9, .beams = beams, .stop_ids = Ids{}};
    GenerateOptions some = all;
    int steps = 0;
    some.on_step = [&] { return ++steps < 4; };
    const Ids whole = generate(*model, {{1, 2}}, all).front();
    const Ids part = generate(*model, {{1, 2}}, some).front();
    EXPECT_EQ(whole.size(), 9u);
    EXPECT_EQ(part.size(), 4u);
    if (beams > 1) continue;
    EXPECT_EQ(part, Ids(whole.begin(), whole.begin() + 4));
  }
}

TEST(Generate, BadOptionsAreNamed) {
  const auto model = load_model(golden("gpt2"));
  EXPECT_THROW(generate(*model, {{1}}, {.temperature = -1}), Error);
  EXPECT_THROW(generate(*model, {{1}}, {.top_p = 0}), Error);
  EXPECT_THROW(generate(*model, {{1}}, {.min_p = 2}), Error);
  EXPECT_THROW(generate(*model, {{1}}, {.beams = 0}), Error);
  EXPECT_THROW(generate(*model, {Ids{}}), Error);
  EXPECT_THROW(generate(*load_model(golden("bert-model")), {{1}}), Error);
  EXPECT_TRUE(generate(*model, {}).empty());
}

}  // namespace
}  // namespace qkv
