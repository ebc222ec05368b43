// Curves of runs: read from what runs write, and drawn where they belong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "qkv/study.h"
#include "study/curves.h"
#include "support/html_check.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void write_run(const std::string& folder, const std::string& lines) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/metrics.jsonl") << lines;
}

constexpr const char* kTwoReports =
    R"({"step":5,"loss":2.5,"health":[
{"name":"decoder.0.self","head":0,"max_logit":3,"entropy":0.5,"saturation":0.25,"q_grad_norm":3,"k_grad_norm":1},
{"name":"decoder.0.self","head":1,"max_logit":7,"entropy":0.1,"saturation":0.75,"q_grad_norm":4,"k_grad_norm":0}]}
{"step":5,"eval":{"loss":9}}
{"step":10,"loss":"nan","health":[{"name":"decoder.0.self","head":0,"max_logit":"inf","entropy":"nan","saturation":0,"q_grad_norm":0,"k_grad_norm":0}]}
{"step":15,"lo)";

std::string two_reports() {
  std::string text = kTwoReports;  // one line for each report
  for (std::size_t at; (at = text.find(":[\n")) != std::string::npos;) text.erase(at + 2, 1);
  for (std::size_t at; (at = text.find("},\n")) != std::string::npos;) text.erase(at + 2, 1);
  return text;
}

TEST(StudyRuns, PutsTheHeadsTogether) {
  const testing::TemporaryFolder folder;
  write_run(folder.path("first"), two_reports());
  const RunsStudy study = study_runs({folder.path("first") + "/"});
  ASSERT_EQ(study.groups.size(), 1u);
  EXPECT_EQ(study.groups[0].name, "first");
  const Curve& curve = study.groups[0].runs.front();
  ASSERT_EQ(curve.size(), 2u);  // neither the evaluation nor the half line
  EXPECT_EQ(curve[0].step, 5);
  EXPECT_EQ(curve[0].loss, 2.5);
  EXPECT_EQ(curve[0].max_logit, 7);
  EXPECT_DOUBLE_EQ(curve[0].entropy, 0.3);
  EXPECT_DOUBLE_EQ(curve[0].saturation, 0.5);
  EXPECT_DOUBLE_EQ(curve[0].q_gradient, 5);
  EXPECT_DOUBLE_EQ(curve[0].k_gradient, 1);
  EXPECT_TRUE(std::isnan(curve[1].loss));
  EXPECT_EQ(curve[1].max_logit, INFINITY);
}

TEST(StudyRuns, ReportsWhatIsNotFinite) {
  const testing::TemporaryFolder folder;
  write_run(folder.path("a"), two_reports());
  write_run(folder.path("b"), "{\"step\":5,\"loss\":1}\n{\"step\":20,\"loss\":0.5}\n");
  const RunsStudy study = study_runs({folder.path("a"), folder.path("b")});
  const auto parsed = nlohmann::json::parse(to_json(study));
  EXPECT_EQ(parsed["runs"][1]["curves"][0]["loss"], (std::vector<double>{1, 0.5}));
  EXPECT_TRUE(parsed["runs"][0]["curves"][0]["loss"][1].is_null());
  EXPECT_TRUE(parsed["runs"][1]["curves"][0]["max_logit"][0].is_null());  // it has no health
  const std::string svg = to_svg(study);
  testing::expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  for (const char* no_number : {"nan", "inf"}) {
    EXPECT_THAT(svg.substr(svg.find("</style>")), Not(HasSubstr(std::string(no_number) + "\"")));
    EXPECT_THAT(svg.substr(svg.find("</style>")), Not(HasSubstr(std::string(no_number) + "L")));
  }
  testing::expect_well_formed(to_html(study));
  EXPECT_THAT(to_text(study), HasSubstr("largest logit"));
}

TEST(StudyRuns, SaysWhatIsMissing) {
  const testing::TemporaryFolder folder;
  write_run(folder.path("empty"), "");
  EXPECT_ERROR("no report of a step yet", study_runs({folder.path("empty")}));
  EXPECT_ERROR("metrics.jsonl", study_runs({folder.path("none")}));
  EXPECT_ERROR("no folder", study_runs({}));
  EXPECT_ERROR("told apart", study_runs(std::vector<std::string>(7, folder.path("empty"))));
}

TEST(Curves, AreDrawnWhereTheyBelong) {
  // y from 0 to 4, x from 0 to 10: the corners of the plotting area are (62, 280) and (506, 14).
  const CurveGroup group{"one", {{{.step = 0, .loss = 4}, {.step = 5, .loss = 2}, {.step = 10}}}};
  const std::string svg = to_svg(study::curve_plot({group}, study::kCurveColumns[0]));
  EXPECT_THAT(svg, HasSubstr("d=\"M62.0 14.0L284.0 147.0L506.0 280.0\""));
}

TEST(Curves, BreakWhereThereIsNoNumber) {
  Curve curve;
  for (int step = 0; step <= 4; ++step) curve.push_back({.step = step, .loss = 1});
  curve[2].loss = std::nan("");
  const std::string svg = to_svg(study::curve_plot({{"one", {curve}}}, study::kCurveColumns[0]));
  const std::size_t at = svg.find("class=\"line\" d=\"");
  const std::string path = svg.substr(at + 16, svg.find('"', at + 16) - at - 16);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 2);
}

TEST(Curves, SpreadIsMeanSmallestAndLargest) {
  const CurveGroup group{"two", {{{.step = 3, .loss = 1}}, {{.step = 3, .loss = 4}}}};
  const std::vector<study::SpreadPoint> points = study::spread(group, &CurvePoint::loss);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].step, 3);
  EXPECT_DOUBLE_EQ(points[0].mean, 2.5);
  EXPECT_EQ(points[0].low, 1);
  EXPECT_EQ(points[0].high, 4);
}

TEST(Curves, TicksAreRoundAndCover) {
  EXPECT_THAT(study::round_ticks(0, 4), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(study::round_ticks(0, 400), ElementsAre(0, 100, 200, 300, 400));
  EXPECT_THAT(study::round_ticks(0, 2.1), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5));
  EXPECT_EQ(study::round_ticks(0, 0).front(), 0);
  EXPECT_GT(study::round_ticks(0, 0).back(), 0);
}

TEST(Curves, SparklinesShareTheirRange) {
  EXPECT_EQ(study::sparkline({0, 1}, 0, 1, 2), "▁█");
  EXPECT_EQ(study::sparkline({0, 1}, 0, 2, 2), "▁▅");
  EXPECT_EQ(study::sparkline({0, std::nan(""), 1}, 0, 1, 3), "▁·█");
  EXPECT_EQ(study::sparkline({}, 0, 1, 3), "");
}

}  // namespace
}  // namespace qkv
