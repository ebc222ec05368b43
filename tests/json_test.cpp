#include "io/json.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expect_error.h"
#include "io/file.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

Config parse(const std::string& text) { return Config::parse(text, "config.json"); }

const char* const kConfig = R"({"hidden_size": 768, "eps": 1e-5, "rope_theta": 10000,
  "tie": true, "model_type": "gpt2", "nothing": null, "eos": 2, "ends": [1, 2, 3],
  "architectures": ["A", "B"], "rope_scaling": {"factor": 8.0, "type": "linear", "deep": {"x": []}},
  "layers": [{"n": 1}, {"n": "two"}], "low": -3, "huge": 18446744073709551615, "half": 0.5})";

TEST(Config, ReadsWhatIsThere) {
  const Config config = parse(kConfig);
  EXPECT_EQ(config.integer("hidden_size", 1, 1 << 20), 768);
  EXPECT_EQ(config.integer("low", -3, 0), -3);
  EXPECT_EQ(config.number("eps", 0, 1), 1e-5);
  EXPECT_EQ(config.number("rope_theta", 1, 1e9), 10000) << "an integer is a number";
  EXPECT_TRUE(config.flag("tie"));
  EXPECT_EQ(config.text("model_type"), "gpt2");
  EXPECT_EQ(config.object("rope_scaling").number("factor", 1, 100), 8);
  EXPECT_EQ(config.integers("ends", 0, 9), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(config.integers("eos", 0, 9), std::vector<std::int64_t>{2}) << "a list of one";
  EXPECT_EQ(config.numbers("ends", 0, 9), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(config.texts("architectures"), (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(config.objects("layers")[0].integer("n", 0, 9), 1);
  EXPECT_EQ(parse(R"({"a":"x","b":"y"})").all_texts().at("b"), "y");
  EXPECT_EQ(parse(R"({"b":1,"a":2,"c":null})").keys(), (std::vector<std::string>{"a", "b"}));
}

TEST(Config, AbsentAndNullGiveTheFallback) {
  const Config config = parse(kConfig);
  for (const char* key : {"absent", "nothing"}) {
    EXPECT_FALSE(config.has(key));
    EXPECT_EQ(config.integer_or(key, 7, 0, 1), 7) << "the fallback may lie outside";
    EXPECT_EQ(config.number_or(key, 0.5, 1, 2), 0.5);
    EXPECT_TRUE(config.flag_or(key, true));
    EXPECT_EQ(config.text_or(key, "x"), "x");
    EXPECT_TRUE(config.integers(key, 0, 1).empty());
    EXPECT_TRUE(config.objects(key).empty());
    EXPECT_ERROR(std::string("config.json: ") + key + " is missing", config.integer(key, 0, 1));
    EXPECT_ERROR("is missing", config.object(key));
  }
  EXPECT_FALSE(Config().has("x"));
  EXPECT_EQ(Config().integer_or("x", 3, 0, 9), 3);
}

TEST(Config, SaysWhatIsWrong) {
  EXPECT_ERROR("config.json: hidden_size must be an integer from 1 to 1048576, got \"abc\"",
               parse(R"({"hidden_size":"abc"})").integer("hidden_size", 1, 1 << 20));
  const Config config = parse(kConfig);
  EXPECT_ERROR("from 1 to 100, got 768", config.integer("hidden_size", 1, 100));
  EXPECT_ERROR("from 1000 to 2000, got 768", config.integer_or("hidden_size", 1, 1000, 2000));
  EXPECT_ERROR("from -2 to 2, got -3", config.integer("low", -2, 2));
  EXPECT_ERROR("got 0.5", config.integer("half", 0, 1));
  EXPECT_ERROR("got 18446744073709551615", config.integer("huge", INT64_MIN, INT64_MAX));
  EXPECT_ERROR("got true", config.integer("tie", 0, 1));
  EXPECT_ERROR("must be a number from 0 to 0.25, got 0.5", config.number("half", 0, 0.25));
  EXPECT_ERROR("must be a number", config.number_or("tie", 0, 0, 1));
  EXPECT_ERROR("must be true or false, got \"gpt2\"", config.flag("model_type"));
  EXPECT_ERROR("must be a text, got a list of 2", config.text("architectures"));
  EXPECT_ERROR("must be an object, got 768", config.object("hidden_size"));
  EXPECT_ERROR("config.json: ends[2] must be", config.integers("ends", 0, 2));
  EXPECT_ERROR("config.json: rope_scaling.type must be",
               config.object("rope_scaling").number("type", 0, 1));
  EXPECT_ERROR("config.json: rope_scaling.deep.y is missing",
               config.object("rope_scaling").object("deep").text("y"));
  EXPECT_ERROR("config.json: layers[1].n must be", config.objects("layers")[1].integer("n", 0, 9));
  EXPECT_ERROR("architectures must be a text", config.all_texts());
}

TEST(Config, RefusesWhatIsNotOneObject) {
  for (const char* text : {"", "[]", "7", "null", "\"x\"", "{", "{}x", "{\"a\":}", "{\"a\":1,}",
                           "{'a':1}", "{\"a\":NaN}", "{\"a\":1e999}", "{\"\xff\":1}",
                           "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":01}", "{/**/}"}) {
    SCOPED_TRACE(text);
    EXPECT_ERROR("config.json: ", parse(text));
  }
  EXPECT_ERROR("'a' appears twice", parse(R"({"a":1,"a":1})"));
  EXPECT_ERROR("'a' appears twice", parse(R"({"b":[{"a":1,"c":{},"a":null}]})"));
  EXPECT_EQ(parse(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]})").keys().size(), 2u);
}

TEST(Config, BoundsDepthSizeAndCount) {
  const auto nested = [](int levels) {
    return "{\"a\":" + std::string(static_cast<std::size_t>(levels), '[') +
           std::string(static_cast<std::size_t>(levels), ']') + "}";
  };
  EXPECT_TRUE(parse(nested(60)).has("a"));
  EXPECT_ERROR("levels of nesting", parse(nested(70)));
  EXPECT_ERROR("levels of nesting", parse("{\"a\":" + std::string(10'000'000, '[')));
  EXPECT_ERROR("at most 16777216", parse(std::string((16 << 20) + 1, ' ')));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_ERROR("more than 1000000 values", parse(many + "]}"));
}

TEST(Config, SaysLittleAboutLongTexts) {
  const std::string text(1'000'000, 'n');
  EXPECT_LT(testing::error_of([&] { parse("{\"a\":\"" + text + "\"}").integer("a", 0, 1); }).size(),
            400u);
  EXPECT_LT(testing::error_of([&] { parse("{\"" + text); }).size(), 400u);
  EXPECT_LT(testing::error_of([&] { parse("{}").text(text); }).size(), 400u);
}

TEST(Config, ReadsAFile) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path("config.json")) << "{\"n\": 1}";
  EXPECT_EQ(Config::read(folder.path("config.json")).integer("n", 0, 9), 1);
  EXPECT_ERROR(folder.path("config.json") + ": n must be",
               Config::read(folder.path("config.json")).integer("n", 2, 9));
  EXPECT_ERROR("No such file", Config::read(folder.path("absent")));
  EXPECT_ERROR("not a regular file", Config::read(folder.path(".")));
  std::ofstream(folder.path("large.json")).close();
  std::filesystem::resize_file(folder.path("large.json"), std::uintmax_t{1} << 40);
  EXPECT_ERROR("at most 16777216", Config::read(folder.path("large.json")));
}

}  // namespace
}  // namespace qkv
