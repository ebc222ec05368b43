// BLEU against what sacreBLEU computed (tests/data/bleu.py).
#include "qkv/bleu.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "expect_error.h"

namespace qkv {
namespace {

using nlohmann::json;
using Lines = std::vector<std::string>;

const json& recorded() {
  static const json all = json::parse(std::ifstream(QKV_TEST_DATA "/bleu.json"));
  return all;
}

BleuOptions options_of(const json& entry) {
  return {.tokenizer = bleu_tokenizer_from_string(entry.at("tokenizer")),
          .lowercase = entry.at("lowercase"),
          .smooth = !entry.contains("smooth") || entry.at("smooth") == "exp"};
}

TEST(Bleu, WordsAreThoseOfSacreBleu) {
  for (const json& entry : recorded().at("words")) {
    const std::string line = entry.at("line");
    EXPECT_EQ(bleu_words(line, options_of(entry)), entry.at("words").get<Lines>())
        << entry.at("tokenizer") << " lowercase " << entry.at("lowercase") << ": " << line;
  }
}

TEST(Bleu, ScoresAreThoseOfSacreBleu) {
  ASSERT_GT(recorded().at("scores").size(), 100U);
  for (const json& entry : recorded().at("scores")) {
    Lines hypotheses;
    std::vector<Lines> references(entry.at("references").get<std::size_t>());
    for (const std::size_t line : recorded().at("corpora").at(entry.at("corpus"))) {
      const json& texts = recorded().at("lines")[line];
      hypotheses.push_back(texts[0]);
      for (std::size_t r = 0; r < references.size(); ++r) references[r].push_back(texts[r + 1]);
    }
    const Bleu found = bleu(hypotheses, references, options_of(entry));
    const std::string what = entry.dump();
    EXPECT_NEAR(found.score, entry.at("score").get<double>(), 1e-9) << what;
    EXPECT_EQ(found.matches, (entry.at("matches").get<std::array<std::int64_t, 4>>())) << what;
    EXPECT_EQ(found.totals, (entry.at("totals").get<std::array<std::int64_t, 4>>())) << what;
    for (std::size_t n = 0; n < 4; ++n) {
      EXPECT_NEAR(found.precisions[n], entry.at("precisions")[n].get<double>(), 1e-9) << what;
    }
    EXPECT_NEAR(found.brevity_penalty, entry.at("brevity_penalty").get<double>(), 1e-12) << what;
    EXPECT_EQ(found.hypothesis_words, entry.at("hypothesis_words")) << what;
    EXPECT_EQ(found.reference_words, entry.at("reference_words")) << what;
    EXPECT_EQ(to_string(found), entry.at("text").get<std::string>()) << what;
    EXPECT_EQ(found.signature.substr(0, found.signature.rfind('|')),
              entry.at("signature").get<std::string>())
        << what;
  }
}

TEST(Bleu, RefusesListsThatDoNotMatch) {
  EXPECT_ERROR("no hypotheses", bleu({}, {{}}));
  EXPECT_ERROR("no references", bleu({"a"}, {}));
  EXPECT_ERROR("2 hypotheses, but 1 references", bleu({"a", "b"}, {{"a", "b"}, {"a"}}));
  EXPECT_ERROR("13a, intl, char and none", bleu_tokenizer_from_string("zh"));
}

TEST(Bleu, TakesBytesThatAreNoText) {
  EXPECT_EQ(bleu_words("a\xFF.", {}), (Lines{"a\xEF\xBF\xBD", "."}));
}

}  // namespace
}  // namespace qkv
