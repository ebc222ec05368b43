// What generation_config.json decides about generation, and what happens where logits are no
// numbers. generation.json is what transformers says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "expect_error.h"
#include "qkv/generate.h"
#include "support/generation.h"

namespace qkv {
namespace {

using test::golden;
using test::with_generation;
using Tokens = std::vector<std::int64_t>;
using Replies = std::vector<Tokens>;

const Replies kConfigPrompts{{12, 38, 9}, {11}, {4, 8, 15, 16}};
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

Replies replies(const std::string& name, const std::string& generation,
                const GenerateOptions& options = {}) {
  return generate(*with_generation(name, generation), kConfigPrompts, options);
}
// Without a file that says anything, and without an end.
Replies plain(const std::string& name, GenerateOptions options) {
  if (!options.stop_ids) options.stop_ids = Tokens{};
  return replies(name, "{}", options);
}

// Every key alone and several together, greedy and with beams.
TEST(GenerationConfigTest, GeneratesWhatTransformersGenerates) {
  const auto all = nlohmann::json::parse(std::ifstream(QKV_TEST_DATA "/generation.json"));
  const auto prompts = all["prompts"].get<Replies>();
  EXPECT_GT(all["cases"].size(), 200u);
  for (const auto& one : all["cases"]) {
    const std::string generation = one["generation"].dump();
    SCOPED_TRACE(one["model"].get<std::string>() + " " + generation);
    const auto model = with_generation(one["model"], generation);
    EXPECT_EQ(generate(*model, prompts), one["tokens"].get<Replies>());
  }
}

TEST(GenerationConfigTest, WithoutTheFileTheConfigDecides) {
  const testing::TemporaryFolder folder;
  const char* const keys = R"("no_repeat_ngram_size": 1, "num_beams": 3, "max_length": 9})";
  const auto with_file = with_generation("gpt2", std::string("{") + keys, folder);
  const Replies expected = generate(*with_file, kConfigPrompts);
  EXPECT_EQ(expected[0].size(), 6u);  // max_length counts the prompt
  EXPECT_EQ(expected[1].size(), 8u);

  std::ifstream file(folder.path("config.json"));
  std::string config{std::istreambuf_iterator<char>(file), {}};
  config.erase(config.rfind('}'));
  test::write_text(folder.path("config.json"), config + ", " + keys);
  std::filesystem::remove(folder.path("generation_config.json"));
  EXPECT_EQ(generate(*load_model(folder.path()), kConfigPrompts), expected);
  // The file decides alone, but for special tokens that it is silent about.
  test::write_text(folder.path("generation_config.json"), R"({"max_new_tokens": 3})");
  const auto silent = load_model(folder.path());
  EXPECT_EQ(generate(*silent, kConfigPrompts, {.stop_ids = Tokens{}}),
            plain("gpt2", {.max_new_tokens = 3}));
  EXPECT_EQ(silent->info().generation.eos_ids, Tokens{0});
  test::write_text(folder.path("generation_config.json"), R"({"eos_token_id": null})");
  EXPECT_TRUE(load_model(folder.path())->info().generation.eos_ids.empty());
  EXPECT_EQ(load_model(folder.path())->info().eos_ids, Tokens{0});  // of texts in training
}

TEST(GenerationConfigTest, AnyOfSeveralEndsASequence) {
  for (const char* name : {"gpt2", "llama"}) {
    const Replies whole = plain(name, {.max_new_tokens = 12});
    const std::int64_t a = whole[0][3], b = whole[1][5];
    const Replies cut =
        replies(name, "{\"eos_token_id\": [" + std::to_string(a) + ", " + std::to_string(b) + "]}",
                {.max_new_tokens = 12});
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const auto end = std::find_if(whole[i].begin(), whole[i].end(),
                                    [&](std::int64_t id) { return id == a || id == b; });
      const Tokens expected(whole[i].begin(), end == whole[i].end() ? end : end + 1);
      EXPECT_EQ(cut[i], expected);
    }
    EXPECT_LE(cut[0].size(), 4u);
  }
}

TEST(GenerationConfigTest, SamplesWhereTheFileSaysSo) {
  const std::string samples = R"({"do_sample": true, "temperature": 1.5, "top_p": 0.9})";
  const GenerateOptions seven{.max_new_tokens = 12, .seed = 7, .stop_ids = Tokens{}};
  GenerateOptions eight = seven, said = seven;
  eight.seed = 8;
  EXPECT_EQ(replies("gpt2", samples, seven), replies("gpt2", samples, seven));
  EXPECT_NE(replies("gpt2", samples, seven), replies("gpt2", samples, eight));
  said.temperature = 1.5;
  said.top_p = 0.9;
  said.top_k = 50;  // what transformers takes for granted
  EXPECT_EQ(replies("gpt2", samples, seven), plain("gpt2", said));
  said.top_k = 0;
  EXPECT_NE(replies("gpt2", samples, seven), plain("gpt2", said));
  // These alone do not make it sample.
  EXPECT_EQ(replies("gpt2", R"({"temperature": 1.5, "top_p": 0.9, "typical_p": 0.5})", seven),
            plain("gpt2", {.max_new_tokens = 12}));
  EXPECT_EQ(replies("gpt2", R"({"do_sample": true, "top_p": 0})", seven),
            plain("gpt2", {.max_new_tokens = 12}));
}

TEST(GenerationConfigTest, WhatTheCallerSaysWins) {
  const Replies greedy = plain("gpt2", {.max_new_tokens = 9});
  // Each key alone would change it.
  const std::vector<std::string> keys{
      R"("do_sample": true, "temperature": 9)",
      R"("no_repeat_ngram_size": 1)",
      R"("max_new_tokens": 5)",
      R"("repetition_penalty": 9)",
      fmt::format(R"("bad_words_ids": [[{}]])", greedy[0][0]),
      fmt::format(R"("suppress_tokens": [{}])", greedy[1][0]),
      fmt::format(R"("begin_suppress_tokens": [{}])", greedy[2][0]),
      fmt::format(R"("eos_token_id": [{}, 1])", greedy[2][0]),
  };
  for (const std::string& key : keys) EXPECT_NE(replies("gpt2", "{" + key + "}"), greedy) << key;
  const std::string file = fmt::format("{{{}, \"min_new_tokens\": 5}}", fmt::join(keys, ", "));
  const GenerateOptions all{.max_new_tokens = 9,
                            .min_new_tokens = 0,
                            .temperature = 0,
                            .repetition_penalty = 1,
                            .no_repeat_ngram_size = 0,
                            .bad_words_ids = Replies{},
                            .suppress_tokens = Tokens{},
                            .begin_suppress_tokens = Tokens{},
                            .stop_ids = Tokens{}};
  EXPECT_EQ(replies("gpt2", file, all), greedy);
  const std::string beams = R"({"num_beams": 3, "length_penalty": 2.0, "early_stopping": "never"})";
  const Tokens ends{15, 40, 41};
  const auto with = [&](GenerateOptions options) {
    options.max_new_tokens = 9;
    options.stop_ids = ends;
    return options;
  };
  EXPECT_EQ(replies("gpt2", beams, with({.temperature = 0, .beams = 1})), plain("gpt2", with({})));
  EXPECT_EQ(
      replies("gpt2", beams, with({.length_penalty = -1, .early_stopping = EarlyStopping::yes})),
      plain("gpt2",
            with({.beams = 3, .length_penalty = -1, .early_stopping = EarlyStopping::yes})));
  // Who asks for sampling gets no beams that he did not ask for.
  EXPECT_EQ(replies("gpt2", beams, with({.temperature = 1})),
            plain("gpt2", with({.temperature = 1})));
}

TEST(GenerationConfigTest, ProcessorsHoldWhenSamplingToo) {
  const auto model = load_model(golden("llama"));
  const Tokens forbidden{3, 5, 7, 11, 46, 15};
  const GenerateOptions options{.max_new_tokens = 40,
                                .min_new_tokens = 20,
                                .temperature = 3,
                                .no_repeat_ngram_size = 2,
                                .suppress_tokens = forbidden,
                                .seed = 3,
                                .stop_ids = Tokens{20, 21, 22, 23, 24, 25, 26, 27, 28, 29}};
  const Replies got = generate(*model, kConfigPrompts, options);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_GT(got[i].size(), 20u);
    Tokens all = kConfigPrompts[i];
    all.insert(all.end(), got[i].begin(), got[i].end());
    std::set<std::pair<std::int64_t, std::int64_t>> pairs;
    for (std::size_t t = 1; t < all.size(); ++t) {
      EXPECT_TRUE(pairs.insert({all[t - 1], all[t]}).second) << i << " " << t;
    }
    for (const std::int64_t id : got[i]) EXPECT_EQ(std::ranges::count(forbidden, id), 0);
  }
  EXPECT_EQ(generate(*model, {kConfigPrompts[1]}, options).front().size(),
            generate(*model, {kConfigPrompts[1], kConfigPrompts[0]}, options).front().size());
}

TEST(GenerationConfigTest, NonsenseIsNamedWithFileKeyAndRange) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {R"({"temperature": "hot"})", "temperature must be a number from 0 to"},
      {R"({"temperature": -0.5})", "temperature must be a number from 0 to"},
      {R"({"do_sample": true, "temperature": 0})", "temperature must be above 0 where do_sample"},
      {R"({"do_sample": 1})", "do_sample must be true or false, got 1"},
      {R"({"top_k": -1})", "top_k must be an integer from 0 to"},
      {R"({"top_p": 1.5})", "top_p must be a number from 0 to 1, got 1.5"},
      {R"({"min_p": 2})", "min_p must be a number from 0 to 1, got 2"},
      {R"({"repetition_penalty": 0})", "repetition_penalty must be a number from 0.01 to 100"},
      {R"({"encoder_repetition_penalty": 1e9})", "encoder_repetition_penalty must be a number"},
      {R"({"length_penalty": 1e9})", "length_penalty must be a number from -100 to 100"},
      {R"({"num_beams": 0})", "num_beams must be an integer from 1 to 1024, got 0"},
      {R"({"num_beams": 1000000000})", "num_beams must be an integer from 1 to 1024"},
      {R"({"early_stopping": "soon"})", "early_stopping must be true, false or \"never\""},
      {R"({"max_new_tokens": 0})", "max_new_tokens must be an integer from 1"},
      {R"({"max_length": 1e99})", "max_length must be an integer from 1"},
      {R"({"min_length": -3})", "min_length must be an integer from 0"},
      {R"({"no_repeat_ngram_size": 1.5})", "no_repeat_ngram_size must be an integer"},
      {R"({"bad_words_ids": [[]]})", "bad_words_ids[0] is empty"},
      {R"({"bad_words_ids": [5]})", "bad_words_ids[0] must be a list of integers, got 5"},
      {R"({"bad_words_ids": [[5], [96]]})", "bad_words_ids[1][0] must be an integer from 0 to 95"},
      {R"({"suppress_tokens": [96]})", "suppress_tokens[0] must be an integer from 0 to 95"},
      {R"({"begin_suppress_tokens": [-1]})", "begin_suppress_tokens[0] must be an integer"},
      {R"({"eos_token_id": ["</s>"]})", "eos_token_id[0] must be an integer"},
      {R"({"decoder_start_token_id": [1, 2]})", "decoder_start_token_id must be one token, got 2"},
      {R"({"exponential_decay_length_penalty": [3]})",
       "exponential_decay_length_penalty must be [start, factor]"},
      {R"({"stop_strings": ""})", "stop_strings has an empty text"},
      {R"({"typical_p": 3})", "typical_p must be a number from 0 to 1, got 3"},
      {R"({"suppress_tokens": [2, 7], "forced_eos_token_id": 7})",
       "forced_eos_token_id: every token of it is among suppress_tokens"},
  };
  for (const auto& [generation, message] : cases) {
    EXPECT_ERROR(std::string("generation_config.json: ") + message,
                 with_generation("bart", generation))
        << generation;
  }
}

TEST(GenerationConfigTest, WhatIsNotImplementedIsRefusedByName) {
  const auto refused = [](const char* generation, const char* message) {
    EXPECT_ERROR(message, replies("gpt2", generation)) << generation;
  };
  refused(R"({"guidance_scale": 1.5})", "generation_config.json: guidance_scale 1.5 would change");
  refused(R"({"sequence_bias": [[[1], 2.0]], "max_time": 3})", "sequence_bias, max_time would");
  refused(R"({"do_sample": true, "typical_p": 0.9})", "typical_p 0.9 would change");
  refused(R"({"do_sample": true, "eta_cutoff": 0.1, "epsilon_cutoff": 0.1})",
          "epsilon_cutoff 0.1, eta_cutoff 0.1 would change");
  refused(R"({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5})",
          "num_beam_groups, diversity_penalty would change");
  refused(R"({"do_sample": true, "num_beams": 4})", "do_sample together with num_beams 4");
  refused(R"({"stop_strings": ["."]})", "stop_strings are not known without a tokenizer");
  // What they would change is not asked for.
  const GenerateOptions greedy{
      .max_new_tokens = 5, .temperature = 0, .beams = 1, .stop_ids = Tokens{}};
  EXPECT_EQ(replies("gpt2", R"({"do_sample": true, "typical_p": 0.9, "num_beams": 4,
                                "num_beam_groups": 2, "stop_strings": ["."], "max_time": null})",
                    greedy),
            plain("gpt2", greedy));
}

TEST(GenerationConfigTest, APromptMayBeTooLongForMaxLength) {
  const auto model = with_generation("gpt2", R"({"max_length": 4})");
  EXPECT_ERROR("prompt 2 has 4 tokens, and max_length of", generate(*model, kConfigPrompts));
  EXPECT_EQ(generate(*model, {{1, 2, 3}}, {.stop_ids = Tokens{}}).front().size(), 1u);
  EXPECT_EQ(generate(*model, kConfigPrompts, {.max_new_tokens = 6, .stop_ids = Tokens{}})[2].size(),
            6u);
}

TEST(GenerationConfigTest, OptionsOutOfRangeAreNamed) {
  const auto model = load_model(golden("gpt2"));
  const auto refused = [&](const char* message, const GenerateOptions& options) {
    EXPECT_ERROR(message, generate(*model, {{1}}, options));
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  refused("generate: temperature must be finite", {.temperature = kNoNumber});
  refused("generate: temperature must be finite", {.temperature = kInfinity});
  refused("generate: top_p must be in (0, 1], got nan", {.top_p = kNoNumber});
  refused("generate: top_p must be in (0, 1], got 1.5", {.top_p = 1.5});
  refused("generate: min_p must be in [0, 1], got nan", {.min_p = kNoNumber});
  refused("generate: top_k must not be negative", {.top_k = -1});
  refused("generate: repetition_penalty must be positive", {.repetition_penalty = 0});
  refused("generate: length_penalty must be from -100 to 100, got nan",
          {.length_penalty = kNoNumber});
  refused("generate: beams must be from 1 to 1024, got 0", {.beams = 0});
  refused("generate: beams must be from 1 to 1024, got 1000000000", {.beams = 1'000'000'000});
  refused("generate: max_new_tokens must be from 0 to", {.max_new_tokens = -1});
  refused("generate: max_new_tokens must be from 0 to",
          {.max_new_tokens = std::numeric_limits<std::int64_t>::max()});
  refused("generate: min_new_tokens must be at most max_new_tokens 3, got 4",
          {.max_new_tokens = 3, .min_new_tokens = 4});
  refused("generate: no_repeat_ngram_size must be from 0", {.no_repeat_ngram_size = -1});
  refused("generate: suppress_tokens must be from 0 to 95, got 96",
          {.suppress_tokens = Tokens{96}});
  refused("generate: bad_words_ids has an empty sequence", {.bad_words_ids = Replies{{}}});
}

// One position of GPT-2 is broken: its sequences are, when they get there.
TEST(GenerationConfigTest, LogitsThatAreNoNumbersAreNamed) {
  const auto model = load_model(golden("gpt2"), {.writable = true});
  const auto broken_from = [&](std::int64_t position, double value) {
    model->visit(nn::Visitor([&](const std::string& name, Tensor& parameter, const Shape&) {
      if (!name.ends_with("wpe.weight")) return;
      const std::int64_t width = parameter.size(1);
      parameter.data<float>()[position * width] = static_cast<float>(value);
    }));
  };
  const std::vector<GenerateOptions> ways{
      {},
      {.temperature = 1},
      {.temperature = 1, .top_k = 3, .top_p = 0.9},
      {.repetition_penalty = 1.5},
      {.no_repeat_ngram_size = 2},
      {.temperature = 1, .suppress_tokens = Tokens{3}},
      {.beams = 3},
      {.repetition_penalty = 1.5, .no_repeat_ngram_size = 3, .beams = 3},
  };
  const Replies prompts{{7}, {1, 2, 3}};
  for (const double value : {kNoNumber, std::numeric_limits<double>::infinity()}) {
    broken_from(5, value);
    for (GenerateOptions options : ways) {
      options.stop_ids = Tokens{};
      EXPECT_ERROR("generate: the logits of sequence 1 are not numbers where its token 3 is chosen",
                   generate(*model, prompts, options));
      options.max_new_tokens = 3;
      EXPECT_EQ(generate(*model, prompts, options)[1].size(), 3u);
    }
  }
}

TEST(GenerationConfigTest, WhereNothingMayFollowIsNamed) {
  const auto model = load_model(golden("gpt2"));
  Tokens all(96);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_ERROR("sequence 0 may not go on with any token as its token 0",
                 generate(*model, {{1}}, {.temperature = temperature, .suppress_tokens = all}));
  }
  EXPECT_ERROR("sequence 0 may not go on with any token as its token 0",
               generate(*model, {{1}}, {.suppress_tokens = all, .beams = 2}));
  // What has ended counts where nothing else may go on.
  all.erase(all.begin() + 3);
  EXPECT_EQ(generate(*model, {{1}}, {.suppress_tokens = all, .beams = 2, .stop_ids = Tokens{3}}),
            Replies{{3}});
}

}  // namespace
}  // namespace qkv
