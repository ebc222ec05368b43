// What a config says to the programs around a model: labels, characters; and what loading tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "qkv/error.h"
#include "qkv/models/model.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using Texts = std::vector<std::string>;

// A tiny BERT with `more` in its config.
ModelInfo info_with(const std::string& more) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("config.json");
  std::ofstream(path) << R"({"model_type": "bert", "vocab_size": 8, "hidden_size": 4,
    "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4,
    "max_position_embeddings": 4, "architectures": ["BertForSequenceClassification"], )"
                      << more << "}";
  return make_model(path)->info();
}

TEST(ModelInfo, LabelsAreInTheOrderOfTheirIds) {
  const ModelInfo info = info_with(R"("id2label": {"1": "good", "0": "bad"})");
  EXPECT_EQ(info.classes, 2);
  EXPECT_EQ(info.labels, (Texts{"bad", "good"}));
  EXPECT_FALSE(info.multi_label);
  EXPECT_TRUE(info_with(R"("problem_type": "multi_label_classification")").multi_label);
  EXPECT_THROW(info_with(R"("id2label": {"0": 7})"), Error);
}

TEST(ModelInfo, AForgottenLabelIsCalledByItsNumber) {
  EXPECT_EQ(info_with(R"("id2label": {"0": "a", "7": "b"})").labels, (Texts{"a", "1"}));
}

TEST(ModelInfo, CharactersAreSymbols) {
  const ModelInfo info = info_with(R"("grapheme_chars": "__ab", "phoneme_chars": "_\u02c8\u03b8")");
  EXPECT_EQ(info.input_symbols, (Texts{"", "", "a", "b"}));
  EXPECT_EQ(info.output_symbols, (Texts{"", "ˈ", "θ"}));
  EXPECT_TRUE(info_with(R"("grapheme_chars": null)").input_symbols.empty());
}

TEST(ModelInfo, LoadingTellsHowFarItIs) {
  std::vector<int> steps;
  int total = 0;
  load_model(QKV_TEST_DATA "/goldens/gpt2",
             {.progress = [&](int done, int all) { steps.push_back(done), total = all; }});
  ASSERT_FALSE(steps.empty());
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), total);
}

}  // namespace
}  // namespace qkv
