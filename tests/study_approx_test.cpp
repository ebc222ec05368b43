// The study of approximations: where nothing is left out nothing is lost, and more costs less
// error.
#include "qkv/study_approx.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/html_check.h"

namespace qkv {
namespace {

const char* const kBertConfig = R"({"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
 "max_position_embeddings": 40})";

ModelInput some_ids_input() {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 32; ++i) ids.push_back((i * 7 + 3) % 50);
  return {.ids = Tensor::from(ids, {1, 32})};
}

std::unique_ptr<Model> some_model() {
  std::unique_ptr<Model> model = make_model(kBertConfig, 2);
  nn::initialize(*model, 2, {.deviation = 0.1f});
  return model;
}

double mean_error(const ApproxStudy& study, const std::string& method, std::int64_t size) {
  double sum = 0;
  int count = 0;
  for (const ApproxStudyRow& row : study.rows) {
    if (row.method != method || row.size != size) continue;
    sum += row.output_error + row.weight_error;
    ++count;
  }
  EXPECT_EQ(count, 4) << method << " " << size;  // two layers of two heads
  return sum / count;
}

TEST(ApproxStudy, LosesNothingWhereNothingIsLeftOut) {
  const ApproxStudy study =
      study_approx(*some_model(), some_ids_input(),
                   {.features = {16, 4096}, .windows = {4, 64}, .lengths = {4, 32}});
  EXPECT_LT(mean_error(study, "longformer", 64), 1e-6);
  EXPECT_LT(mean_error(study, "linformer", 32), 1e-5);
  EXPECT_GT(mean_error(study, "longformer", 4), 0.1);
  EXPECT_GT(mean_error(study, "linformer", 4), 0.01);
  EXPECT_LT(mean_error(study, "performer", 4096), 0.3 * mean_error(study, "performer", 16));
  for (const ApproxStudyRow& row : study.rows) {
    EXPECT_GT(row.exact_entropy, 0);
    if (row.method == "longformer" && row.size == 64) {
      EXPECT_NEAR(row.entropy, row.exact_entropy, 1e-5);
    }
  }
  EXPECT_NE(to_text(study).find("performer"), std::string::npos);
  EXPECT_NE(to_json(study).find("\"output_error\""), std::string::npos);
  const std::string svg = to_svg(study);
  testing::expect_well_formed(svg);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(ApproxStudy, TakesOneSequence) {
  ModelInput two = some_ids_input();
  two.ids = Tensor::zeros({2, 5}, {DType::i64});
  EXPECT_ERROR("ids must be [1, S]", study_approx(*some_model(), two));
}

}  // namespace
}  // namespace qkv
