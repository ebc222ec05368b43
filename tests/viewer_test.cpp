// What is shown is what was computed, and no more than was asked for.
#include "qkv/viewer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "qkv/ops.h"
#include "support/goldens.h"
#include "text/base64.h"

namespace qkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::int64_t> kIds{5, 17, 9, 41, 23, 8, 60, 2};

AttentionPicture picture_of(const std::string& golden, std::vector<std::int64_t> ids = kIds,
                            const LookOptions& options = {}) {
  const auto model = load_model(test::golden(golden));
  return look(*model, {.text = "some text", .ids = std::move(ids)}, options);
}

template <class T>
std::vector<T> decoded(const json& text) {
  const std::string bytes = text::decoded_base64(text.get<std::string>(), "page");
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Eight tokens, over and over: long enough not to fit.
std::vector<std::int64_t> many(std::size_t count) {
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(5 + static_cast<std::int64_t>(i * i % 80));
  return ids;
}

TEST(Look, GivesTheWeightsOfEveryFamily) {
  for (const std::string& name : test::kGoldens) {
    SCOPED_TRACE(name);
    const auto model = load_model(test::golden(name));
    const bool is_pair = model->info().kind == ModelKind::encoder_decoder;
    const std::vector<std::int64_t> target{7, 9, 11};
    const AttentionPicture picture =
        look(*model, {.ids = kIds, .target = is_pair ? target : std::vector<std::int64_t>{}});
    nn::Trace trace{.attentions = true}, encoder_trace{.attentions = true};
    ModelInput input{.ids = Tensor::from(kIds, {1, 8})};
    if (is_pair) input.decoder_ids = model->decoder_inputs(Tensor::from(target, {1, 3}));
    (*model)(input, {.trace = &trace, .encoder_trace = &encoder_trace});
    const auto expect = [&](const char* map, const std::vector<Tensor>& weights) {
      const AttentionMap* seen = picture.map(map);
      ASSERT_NE(seen, nullptr) << map;
      EXPECT_EQ(picture.tokens_of(seen->rows).size(), std::size_t(seen->layers[0].rows()));
      EXPECT_EQ(picture.tokens_of(seen->keys).size(), std::size_t(seen->layers[0].key_count()));
      ASSERT_EQ(seen->layers.size(), weights.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(seen->layers[i].weights().to_vector<float>(), weights[i].to_vector<float>());
      }
    };
    if (name == "longformer") {  // traces only here
      EXPECT_EQ(picture.maps[0].layers.size(), std::size_t(model->info().layers));
      continue;
    }
    if (is_pair) expect("encoder", encoder_trace.attention_weights);
    if (is_pair) expect("cross", trace.cross_weights);
    expect(model->info().kind == ModelKind::encoder ? "encoder" : "decoder",
           trace.attention_weights);
  }
}

TEST(Look, TellsWhatTheModelSays) {
  const AttentionPicture next = picture_of("gpt2", kIds, {.new_tokens = 4});
  EXPECT_EQ(next.prompt_tokens, 8);
  EXPECT_EQ(next.tokens_of("target").size(), 12u);
  ASSERT_EQ(next.answers.size(), 1u);
  EXPECT_GE(next.answers[0].choices[0].probability, next.answers[0].choices[1].probability);

  const AttentionPicture classes = picture_of("bert-classifier");
  ASSERT_EQ(classes.answers.size(), 1u);
  double sum = 0;
  for (const TokenChoice& choice : classes.answers[0].choices) sum += choice.probability;
  EXPECT_NEAR(sum, 1, 1e-5);

  const auto model = load_model(test::golden("bert-masked-lm"));
  const AttentionPicture gaps = look(*model, {.ids = {2, 4, 9, 4}, .mask_id = 4});
  ASSERT_EQ(gaps.answers.size(), 2u);
  EXPECT_EQ(gaps.answers[1].position, 3);
}

TEST(Look, ARowOfCrossAttentionBelongsToTheTokenItLedTo) {
  const auto model = load_model(test::golden("bart"));
  const AttentionPicture picture = look(*model, {.ids = kIds, .target = {7, 9, 11}});
  std::vector<std::int64_t> written, read;
  for (const SeenToken& token : picture.tokens_of("written")) written.push_back(token.id);
  for (const SeenToken& token : picture.tokens_of("target")) read.push_back(token.id);
  EXPECT_EQ(written, (std::vector<std::int64_t>{7, 9, 11}));
  EXPECT_EQ(read, (std::vector<std::int64_t>{model->info().decoder_start_id, 7, 9}));
  EXPECT_EQ(picture.map("cross")->rows, "written");
}

TEST(PictureJson, HoldsTheSelection) {
  const AttentionPicture picture = picture_of("llama");
  const json all = json::parse(to_json(picture));
  const json one = json::parse(to_json(picture, {.layer = 1, .head = 2, .rows = {3}}));
  const json& head = one["maps"][0]["layers"][1]["heads"][0];
  EXPECT_EQ(head["head"], 2);
  EXPECT_EQ(head["weights"].size(), 1u);
  EXPECT_EQ(head["weights"][0], all["maps"][0]["layers"][1]["heads"][2]["weights"][3]);
  EXPECT_EQ(head["queries"].size(), 8u);
  EXPECT_FALSE(one["maps"][0]["layers"][0].contains("heads"));
  EXPECT_EQ(one["maps"][0]["layers"][0]["statistics"]["entropy"].size(), 4u);
  EXPECT_ERROR("layer 9 is not there", to_json(picture, {.layer = 9}));
  EXPECT_ERROR("head 4 is not there", to_json(picture, {.head = 4}));
  EXPECT_ERROR("row 8 is not there", to_json(picture, {.rows = {8}}));
  EXPECT_ERROR("no cross attention; there is decoder", to_json(picture, {.map = "cross"}));
}

TEST(PageData, HoldsAllWeightsOfAShortText) {
  const AttentionPicture picture = picture_of("gemma2");
  const json page = json::parse(to_page_data(picture));
  EXPECT_TRUE(page["full"]);
  const SeenLayer& layer = picture.maps[0].layers[1];
  const std::vector<float> weights = layer.weights({.heads = {1}}).to_vector<float>();
  const json& data = page["maps"][0]["layers"][1];
  const auto numbers = decoded<std::uint16_t>(data["heads"][1]["weights"]);
  ASSERT_EQ(numbers.size(), weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(numbers[i] / 65535.0, weights[i], 0.5001 / 65535);
  }
  const Tensor queries = contiguous(slice(layer.queries, 1, 1, 2));
  EXPECT_EQ(decoded<float>(data["heads"][1]["queries"]), queries.to_vector<float>());
  const std::int64_t key_heads = layer.keys.size(1);
  EXPECT_EQ(data["key_heads"], key_heads);
  EXPECT_EQ(data["keys"].size(), std::size_t(key_heads));
}

TEST(PageData, OfALongTextStaysWithinItsLimit) {
  const AttentionPicture picture = picture_of("t5", many(3000), {.new_tokens = 2});
  const std::size_t limit = 2 << 20;
  const std::string text = to_page_data(picture, {.limit = limit, .layer = 1, .head = 2});
  const json page = json::parse(text);
  EXPECT_LT(text.size(), limit + 100 * 1024);  // the tokens are beside the limit
  EXPECT_FALSE(page["full"]);
  const std::size_t top = page["top"];
  ASSERT_GE(top, 1u);
  const json& map = page["maps"][0];
  ASSERT_EQ(map["name"], "encoder");
  const json& head = map["layers"][1]["heads"][2];
  EXPECT_FALSE(head.contains("weights"));
  EXPECT_TRUE(head.contains("queries")) << "the chosen head comes first";

  const std::int64_t row = 1234;
  const std::vector<float> weights =
      picture.maps[0].layers[1].weights({.heads = {2}, .rows = {row}}).to_vector<float>();
  std::vector<float> sorted = weights;
  std::sort(sorted.rbegin(), sorted.rend());
  const auto at = decoded<std::uint32_t>(head["top_keys"]);
  const auto of = decoded<std::uint16_t>(head["top_weights"]);
  ASSERT_EQ(at.size(), 3000 * top);
  for (std::size_t i = 0; i < top; ++i) {
    EXPECT_EQ(weights[at[row * top + i]], sorted[i]);
    EXPECT_NEAR(of[row * top + i] / 65535.0, sorted[i], 1e-5);
  }
  const std::size_t blocks = head["shape"][1];
  const auto pooled = decoded<std::uint16_t>(head["pooled"]);
  double sum = 0;
  for (std::size_t j = 0; j < blocks; ++j) sum += pooled[j] / 65535.0;
  EXPECT_NEAR(sum, 1, 1e-3) << "a block of rows is a mean of rows that each add up to 1";
}

TEST(PageData, ATinyLimitStillShowsTheWhole) {
  const AttentionPicture picture = picture_of("bert-model", many(60));
  const json page = json::parse(to_page_data(picture, {.limit = 1000}));
  EXPECT_EQ(page["top"], 0);
  EXPECT_TRUE(page["maps"][0]["layers"][0]["heads"][0].contains("pooled"));
  EXPECT_FALSE(page["maps"][0]["layers"][0]["heads"][0].contains("queries"));
}

TEST(Page, NeedsNothingElseAndCannotBeBrokenOutOf) {
  const auto model = load_model(test::golden("gpt2"));
  const std::string text = "</script><script>alert(1)</script> {{script}} <!-- \"&";
  const auto name = [&](std::int64_t) { return text; };
  const AttentionPicture picture =
      look(*model, {.text = text, .ids = kIds, .spelling = {.input = name, .output = name}});
  const std::string page = to_html(picture);
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>"));
  EXPECT_THAT(page, HasSubstr("{{script}} \\u003c!--"));
  std::string rest = page;
  for (std::size_t at = 0; (at = rest.find("http://www.w3.org/2000/svg")) != std::string::npos;) {
    rest.erase(at, 26);  // a name, not an address
  }
  EXPECT_THAT(rest, Not(HasSubstr("http:")));
  EXPECT_THAT(rest, Not(HasSubstr("https:")));
  EXPECT_THAT(rest, Not(HasSubstr(" src=")));
}

TEST(PictureText, IsPlainUnlessColoursAreWanted) {
  const AttentionPicture picture = picture_of("gpt2");
  EXPECT_THAT(to_text(picture), Not(HasSubstr("\x1b")));
  EXPECT_THAT(to_text(picture, {.color = true}), HasSubstr("\x1b["));
  EXPECT_THAT(to_text(picture), HasSubstr("decoder attention, layer 1 (0 to 1), mean of 4 heads"));
  const std::string narrow = to_text(picture, {.selection = {.head = 3}, .columns = 40});
  EXPECT_THAT(narrow, HasSubstr("head 3"));
  EXPECT_THAT(narrow, Not(HasSubstr("▒▒")));  // no room for cells
  EXPECT_ERROR("head 7", to_text(picture, {.selection = {.head = 7}}));
}

TEST(PictureText, TokensCannotTakeOverATerminal) {
  const auto model = load_model(test::golden("gpt2"));
  const auto name = [](std::int64_t id) {
    return std::vector<std::string>{"\x1b[2J", " a\nb ", "", "\xff", "日本"}[std::size_t(id) % 5];
  };
  const AttentionPicture picture =
      look(*model, {.ids = {0, 1, 2, 3, 4}, .spelling = {.input = name, .output = name}});
  std::vector<std::string> texts;
  for (const SeenToken& token : picture.tokens_of("target")) texts.push_back(token.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"�[2J", "a⏎b", "␣", "�", "日本"}));
  EXPECT_THAT(to_text(picture), Not(HasSubstr("\x1b")));
}

// One layer of a picture with no model behind it.
SeenLayer layer_of(std::int64_t heads, std::int64_t rows, std::int64_t keys) {
  const Tensor each = Tensor::full({1, heads}, 0.5, {});
  SeenLayer layer;
  layer.queries = Tensor::full({1, heads, rows, 4}, 0.5, {});
  layer.keys = Tensor::full({1, 1, keys, 4}, 0.5, {});
  layer.lse = Tensor::full({1, heads, rows}, 1, {});
  AttentionStatistics& s = layer.statistics;
  s.max_logit = s.score_var = s.entropy_mean = s.entropy_relative = s.saturation = each;
  return layer;
}

AttentionPicture made_picture(std::vector<SeenLayer> layers, std::size_t rows, std::size_t keys) {
  AttentionPicture picture;
  picture.model.kind = ModelKind::encoder_decoder;
  picture.tokens = {{"source", std::vector<SeenToken>(keys, {1, "a"})},
                    {"written", std::vector<SeenToken>(rows, {2, "b"})}};
  picture.maps = {{"cross", "written", "source", std::move(layers)}};
  return picture;
}

TEST(PictureShapes, RowsAndHeadsAreThoseOfTheLayer) {
  const AttentionPicture picture = made_picture({layer_of(1, 3, 5), layer_of(4, 3, 5)}, 3, 5);
  const json head = json::parse(to_json(picture, {.layer = 1, .head = 3, .rows = {2}}));
  EXPECT_EQ(head["maps"][0]["layers"][1]["heads"][0]["weights"][0].size(), 5u);
  EXPECT_ERROR("head 3 is not there", to_json(picture, {.layer = 0, .head = 3}));
  EXPECT_ERROR("head 3 is not there", to_json(picture, {.head = 3}));
  EXPECT_ERROR("row 3 is not there", to_json(picture, {.rows = {3}}));
  EXPECT_THAT(to_text(picture, {.selection = {.head = 3}}), HasSubstr("layer 1"));
  const json page = json::parse(to_page_data(picture, {.layer = -1, .head = -1}));
  EXPECT_EQ(page["maps"][0]["heads"], 4);
  EXPECT_TRUE(page["maps"][0]["layers"][1]["heads"][3].contains("queries"));
}

TEST(PictureShapes, EveryMapIsHeldToTheSelection) {
  AttentionPicture picture = made_picture({layer_of(4, 9, 5)}, 9, 5);
  picture.maps.push_back({"encoder", "source", "source", {layer_of(2, 5, 5)}});
  EXPECT_ERROR("the encoder attention has row 0 to 4", to_json(picture, {.rows = {8}}));
  EXPECT_EQ(json::parse(to_json(picture, {.map = "cross", .rows = {8}}))["maps"].size(), 1u);
}

TEST(PictureShapes, WhatIsNotThereIsAnError) {
  const auto expect = [](const char* why, const AttentionPicture& picture) {
    EXPECT_ERROR(why, to_json(picture));
    EXPECT_ERROR(why, to_text(picture));
    EXPECT_ERROR(why, to_html(picture));
  };
  expect("no attention", {});
  expect("no layers", made_picture({}, 3, 5));
  expect("no heads or no tokens", made_picture({layer_of(0, 3, 5)}, 3, 5));
  expect("no heads or no tokens", made_picture({layer_of(2, 0, 0)}, 0, 0));
  expect("3 rows and 5 keys, its tokens are 2 and 5", made_picture({layer_of(2, 3, 5)}, 2, 5));
  expect("must be [1, heads, tokens, size]", made_picture({{}}, 3, 5));
  SeenLayer unmeasured = layer_of(2, 3, 5);
  unmeasured.statistics = {};
  expect("lacks statistics", made_picture({unmeasured}, 3, 5));
}

TEST(PictureShapes, TitlesNeedNotBeUtf8) {
  const AttentionPicture picture = made_picture({layer_of(2, 3, 5)}, 3, 5);
  EXPECT_EQ(json::parse(to_page_data(picture, {.title = "a\xff"}))["title"], "a\xEF\xBF\xBD");
  EXPECT_THAT(to_html(picture, {.title = "a\xff"}), HasSubstr("<title>a\xEF\xBF\xBD"));
}

}  // namespace
}  // namespace qkv
