// The scaling study: its numbers against their expectations, and its reports.
#include "qkv/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "qkv/error.h"
#include "qkv/threads.h"
#include "support/html_check.h"

namespace qkv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ScaleStudyOptions small_options() {
  ScaleStudyOptions options;
  options.head_sizes = {64, 16};
  options.keys = 48;
  options.queries = 40;
  options.value_size = 24;
  options.trials = 12;
  options.seed = 3;
  return options;
}

const ScaleStudy& small_study() {
  static const ScaleStudy study = study_scale(small_options());
  return study;
}

void expect_agreement(const Quantity& quantity, const char* name, const ScaleStudyRow& row) {
  ASSERT_TRUE(quantity.expected.has_value()) << name;
  EXPECT_LT(quantity.deviation(), 5)
      << name << ", d_k = " << row.head_size << ", scale " << row.scale_name
      << ", s^2 = " << row.input_variance << ": " << quantity.measured.mean << " +- "
      << quantity.measured.standard_error << " against " << quantity.expected->mean;
}

TEST(StudyScale, MeasuresWhatIsExpected) {
  const ScaleStudy& study = small_study();
  EXPECT_EQ(study.rows.size(), 2 * 3u);
  EXPECT_EQ(study.variance_rows.size(), 3 * 2u);
  for (const auto* rows : {&study.rows, &study.variance_rows}) {
    for (const ScaleStudyRow& row : *rows) {
      expect_agreement(row.score_variance, "score_variance", row);
      expect_agreement(row.score_magnitude, "score_magnitude", row);
      expect_agreement(row.top_weight, "top_weight", row);
      expect_agreement(row.entropy, "entropy", row);
      expect_agreement(row.entropy_relative, "entropy_relative", row);
      expect_agreement(row.saturation, "saturation", row);
      expect_agreement(row.gradient_scores, "gradient_scores", row);
      expect_agreement(row.gradient_q, "gradient_q", row);
      expect_agreement(row.gradient_k, "gradient_k", row);
      EXPECT_GT(row.score_variance.measured.standard_error, 0);
    }
  }
}

TEST(StudyScale, ExpectsTheVarianceOfTheFormula) {
  for (const ScaleStudyRow& row : small_study().variance_rows) {
    const double s4 = row.input_variance * row.input_variance;
    const double d = static_cast<double>(row.head_size);
    EXPECT_DOUBLE_EQ(row.score_variance.expected->mean, row.scale_name == "none" ? d * s4 : s4);
  }
}

TEST(StudyScale, FlagsWhatDisagrees) {
  ScaleStudy study = small_study();
  EXPECT_THAT(to_text(study), Not(HasSubstr("DISAGREES")));
  Quantity& quantity = study.rows[0].entropy;
  quantity.measured.mean += 100 * quantity.measured.standard_error;
  EXPECT_GT(quantity.deviation(), kDisagreement);
  EXPECT_THAT(to_text(study), HasSubstr("DISAGREES"));
  EXPECT_THAT(to_html(study), HasSubstr("standard errors off"));
}

TEST(StudyScale, SaysWhereAStatementIsLoose) {
  ScaleStudyOptions options = small_options();
  options.head_sizes = {512};
  options.queries = options.keys = 32;
  const std::string text = to_text(study_scale(options));
  EXPECT_THAT(text, HasSubstr("(expected 22.63)"));
  EXPECT_THAT(text, HasSubstr("not 512"));
  EXPECT_THAT(text, HasSubstr("s² = 2"));
  EXPECT_THAT(text, HasSubstr("(expected 2048)"));
}

TEST(StudyScale, SameNumbersAtAnyNumberOfThreads) {
  const int before = num_threads();
  set_num_threads(3);
  const ScaleStudy study = study_scale(small_options());
  set_num_threads(before);
  for (std::size_t i = 0; i < study.rows.size(); ++i) {
    const ScaleStudyRow &a = study.rows[i], &b = small_study().rows[i];
    EXPECT_EQ(a.score_variance.measured.mean, b.score_variance.measured.mean);
    EXPECT_EQ(a.gradient_q.measured.mean, b.gradient_q.measured.mean);
    EXPECT_EQ(a.entropy.expected->mean, b.entropy.expected->mean);
  }
}

TEST(StudyScale, ReportsProgressToItsEnd) {
  ScaleStudyOptions options = small_options();
  options.head_sizes = {8};
  int calls = 0, last = 0, whole = 0;
  options.progress = [&](int done, int total) {
    EXPECT_EQ(done, ++calls);
    last = done;
    whole = total;
  };
  study_scale(options);
  EXPECT_EQ(last, whole);
  EXPECT_GT(whole, 0);
}

TEST(StudyScale, TextFitsATerminal) {
  ScaleStudy study = small_study();
  study.target = "avx512_bf16";  // the longest of the names, whatever this machine has
  std::istringstream lines(to_text(study));
  for (std::string line; std::getline(lines, line);) {
    int columns = 0;
    for (const unsigned char c : line) columns += (c & 0xC0) != 0x80;
    EXPECT_LE(columns, 100) << line;
  }
}

TEST(StudyScale, JsonHasEveryRow) {
  const auto parsed = nlohmann::json::parse(to_json(small_study()));
  EXPECT_EQ(parsed["rows"].size(), 6u);
  EXPECT_EQ(parsed["rows"][0]["head_size"], 16);
  EXPECT_EQ(parsed["rows"][0]["score_variance"]["expected"]["mean"], 16.0);
  EXPECT_TRUE(parsed["rows"][5]["gradient_k"]["measured"].contains("standard_error"));
  EXPECT_EQ(parsed["options"]["seed"], 3);
  EXPECT_FALSE(parsed["findings"].empty());
}

TEST(StudyScale, HtmlStandsAlone) { testing::expect_stands_alone(to_html(small_study())); }

TEST(StudyScale, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    ScaleStudyOptions options = small_options();
    change(options);
    EXPECT_THROW(study_scale(options), Error);
  };
  refused([](ScaleStudyOptions& o) { o.head_sizes = {}; });
  refused([](ScaleStudyOptions& o) { o.head_sizes = {0}; });
  refused([](ScaleStudyOptions& o) { o.head_sizes = {2048}; });
  refused([](ScaleStudyOptions& o) { o.keys = 1; });
  refused([](ScaleStudyOptions& o) { o.queries = 0; });
  refused([](ScaleStudyOptions& o) { o.trials = 1; });
  refused([](ScaleStudyOptions& o) { o.input_variance = 0; });
  refused([](ScaleStudyOptions& o) { o.input_variance = std::nan(""); });
}

}  // namespace
}  // namespace qkv
