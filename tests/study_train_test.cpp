// The training study: its figures against a plain computation, its task, and its reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "expect_error.h"
#include "qkv/models/model.h"
#include "qkv/study.h"
#include "qkv/threads.h"
#include "study/train_task.h"
#include "support/html_check.h"
#include "support/temporary_folder.h"
#include "train/health.h"

namespace qkv {
namespace {

using ::testing::HasSubstr;

TrainStudyOptions small_run() {
  TrainStudyOptions options;
  options.steps = 6;
  options.reports = 3;
  options.seed = 5;
  options.layers = 1;
  options.heads = 2;
  options.head_size = 8;
  options.batch = 3;
  options.pairs = 4;
  return options;
}

const TrainStudy& small_train_study() {
  static const TrainStudy study = study_train(small_run());
  return study;
}

// The figures of one attention, from its queries and keys by plain loops in double precision.
struct PlainFigures {
  double max_logit = -INFINITY, entropy = 0, saturation = 0;
};
PlainFigures plain_figures(const nn::AttentionHealth& h, double scale) {
  const std::vector<float> q = h.queries.to_vector<float>(), k = h.keys.to_vector<float>();
  const std::int64_t heads = h.queries.size(0) * h.queries.size(1);
  const std::int64_t length = h.queries.size(2), size = h.queries.size(3);
  PlainFigures figures;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t i = 0; i < length; ++i) {
      std::vector<double> weights;
      for (std::int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < size; ++d) {
          score +=
              static_cast<double>(q[static_cast<std::size_t>((head * length + i) * size + d)]) *
              k[static_cast<std::size_t>((head * length + j) * size + d)];
        }
        figures.max_logit = std::max(figures.max_logit, scale * score);
        weights.push_back(std::exp(scale * score));
      }
      double sum = 0, entropy = 0;
      for (const double w : weights) sum += w;
      for (const double w : weights) entropy -= w / sum * std::log(w / sum);
      const double rows = static_cast<double>(heads * length);
      if (i > 0) figures.entropy += entropy / std::log(static_cast<double>(i + 1)) / rows;
      figures.saturation +=
          (*std::max_element(weights.begin(), weights.end()) / sum > 0.99 ? 1 : 0) / rows;
    }
  }
  return figures;
}

double plain_norm(const Tensor& x) {
  double squares = 0;
  for (const float value : x.to_vector<float>()) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

TEST(StudyTrain, FiguresAreThoseOfAPlainComputation) {
  const TrainStudyOptions o = small_run();
  const study::TrainTask task(o);
  const study::TaskBatch batch = task.batch(o.seed, 1);
  for (std::size_t s = 0; s < 3; ++s) {
    const double scale = small_train_study().scales[s];
    const nlohmann::json config{{"model_type", "llama"},
                                {"vocab_size", task.vocabulary()},
                                {"hidden_size", 16},
                                {"num_hidden_layers", 1},
                                {"num_attention_heads", 2},
                                {"intermediate_size", 32},
                                {"max_position_embeddings", 12},
                                {"attention_scale", scale}};
    const std::unique_ptr<Model> model = make_model(config.dump());
    nn::initialize(*model, o.seed, {.xavier = true});
    nn::Training pass{.statistics = kHealthStatistics};
    Tape tape;
    const Tensor loss = model->loss({.ids = batch.ids}, batch.labels, {.training = &pass});
    ASSERT_EQ(pass.health.size(), 1u);
    const nn::AttentionHealth& h = pass.health.front();
    watch_scores(tape, pass);
    const Gradients gradients = tape.backward(loss);
    const PlainFigures plain = plain_figures(h, scale);
    const CurvePoint& point = small_train_study().groups[s].runs.front().front();
    EXPECT_EQ(point.step, 1);
    EXPECT_FLOAT_EQ(point.loss, loss.to_vector<float>()[0]);
    EXPECT_NEAR(point.max_logit, plain.max_logit, 1e-4 * std::abs(plain.max_logit));
    EXPECT_NEAR(point.entropy, plain.entropy, 1e-4);
    EXPECT_NEAR(point.saturation, plain.saturation, 1e-6);
    const double q = plain_norm(gradients[h.queries]), k = plain_norm(gradients[h.keys]);
    EXPECT_NEAR(point.q_gradient, q, 1e-4 * q);
    EXPECT_NEAR(point.k_gradient, k, 1e-4 * k);
  }
}

TEST(StudyTrain, ScalesAreTheThree) {
  ASSERT_EQ(small_train_study().groups.size(), 3u);
  EXPECT_EQ(small_train_study().groups[0].name, "none");
  EXPECT_DOUBLE_EQ(small_train_study().scales[0], 1);
  EXPECT_DOUBLE_EQ(small_train_study().scales[1], 1 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(small_train_study().scales[2], 1 / 8.0);
  // The logits of the same weights differ by the scale alone.
  const auto logit = [](std::size_t s) {
    return small_train_study().groups[s].runs[0][0].max_logit;
  };
  EXPECT_NEAR(logit(1), logit(0) / std::sqrt(8.0), 1e-4 * logit(0));
  EXPECT_NEAR(logit(2), logit(0) / 8, 1e-4 * logit(0));
}

TEST(StudyTrain, EveryQuestionCanBeAnswered) {
  const TrainStudyOptions o = small_run();
  const study::TrainTask task(o);
  const study::TaskBatch batch = task.batch(1, 7);
  const std::vector<std::int64_t> ids = batch.ids.to_vector<std::int64_t>();
  const std::vector<std::int64_t> labels = batch.labels.to_vector<std::int64_t>();
  constexpr std::int64_t kKeys = 16, kValues = 16, kFirstFact = 32;
  const auto length = static_cast<std::size_t>(task.length());
  ASSERT_EQ(ids.size(), 3 * length);
  for (std::size_t row = 0; row < 3; ++row) {
    std::set<std::pair<std::int64_t, std::int64_t>> facts, asked;
    std::set<std::int64_t> keys;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int64_t fact = ids[row * length + i] - kFirstFact;
      EXPECT_EQ(labels[row * length + i], -100);
      facts.emplace(fact / kValues, fact % kValues);
      keys.insert(fact / kValues);
    }
    EXPECT_EQ(keys.size(), 4u);
    for (std::size_t i = 4; i < length; i += 2) {
      EXPECT_EQ(labels[row * length + i], -100);
      EXPECT_EQ(labels[row * length + i + 1], ids[row * length + i + 1]);
      asked.emplace(ids[row * length + i], ids[row * length + i + 1] - kKeys);
    }
    EXPECT_EQ(asked, facts);
  }
  EXPECT_EQ(task.batch(1, 7).ids.to_vector<std::int64_t>(), ids);
  EXPECT_NE(task.batch(1, 8).ids.to_vector<std::int64_t>(), ids);
  EXPECT_NE(task.batch(2, 7).ids.to_vector<std::int64_t>(), ids);
}

TEST(StudyTrain, RowsOfATextAreItsBytes) {
  const testing::TemporaryFolder folder;
  const std::string text = "In the beginning was the word, and \xc3\xa9 is two bytes.";
  std::ofstream(folder.path("text.txt")) << text;
  TrainStudyOptions o = small_run();
  o.text_file = folder.path("text.txt");
  o.length = 12;
  const study::TaskBatch batch = study::TrainTask(o).batch(1, 0);
  const std::vector<std::int64_t> ids = batch.ids.to_vector<std::int64_t>();
  for (std::size_t row = 0; row < 3; ++row) {
    std::string part;
    for (std::size_t i = 0; i < 12; ++i) part += static_cast<char>(ids[12 * row + i]);
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(batch.labels.to_vector<std::int64_t>(), ids);
  o.length = 60;
  EXPECT_ERROR("a row needs more than 60", study_train(o));
}

TEST(StudyTrain, SameSeedSameCurvesAtAnyNumberOfThreads) {
  const int before = num_threads();
  set_num_threads(3);
  TrainStudy again = study_train(small_run());
  set_num_threads(before);
  again.threads = small_train_study().threads;
  EXPECT_EQ(to_json(again), to_json(small_train_study()));
  TrainStudyOptions other = small_run();
  other.seed = 6;
  EXPECT_NE(study_train(other).groups[1].runs[0][0].loss,
            small_train_study().groups[1].runs[0][0].loss);
}

TEST(StudyTrain, LearnsToRecall) {
  TrainStudyOptions o;
  o.steps = 150;
  o.layers = 1;
  o.head_size = 32;
  o.pairs = 2;
  o.lr = 1e-2;
  const TrainStudy study = study_train(o);
  EXPECT_LT(study.groups[1].runs[0].back().loss, 0.5 * study.guessing);
}

TEST(StudyTrain, JsonHasEveryCurve) {
  const auto parsed = nlohmann::json::parse(to_json(small_train_study()));
  EXPECT_EQ(parsed["study"], "train");
  ASSERT_EQ(parsed["scales"].size(), 3u);
  EXPECT_EQ(parsed["scales"][2]["scale"], 0.125);
  const auto& curves = parsed["scales"][0]["curves"][0];
  EXPECT_EQ(curves["step"], (std::vector<int>{1, 2, 4, 6}));
  for (const char* key :
       {"loss", "max_logit", "entropy", "saturation", "q_gradient", "k_gradient"}) {
    EXPECT_EQ(curves[key].size(), 4u) << key;
  }
  EXPECT_EQ(parsed["findings"].size(), 5u);
  EXPECT_EQ(parsed["options"]["seed"], 5);
}

TEST(StudyTrain, SeveralSeedsHaveASpread) {
  TrainStudyOptions o = small_run();
  o.seeds = 2;
  const TrainStudy study = study_train(o);
  ASSERT_EQ(study.groups[0].runs.size(), 2u);
  EXPECT_EQ(study.groups[0].runs[0].back().loss, small_train_study().groups[0].runs[0].back().loss);
  EXPECT_THAT(to_text(study), HasSubstr("Over 2 seeds"));
  EXPECT_THAT(to_html(study), HasSubstr("class=\"band\""));
}

// Two points of each curve, with this loss at the end.
TrainStudy made_study(double none, double usual, double inverse) {
  TrainStudy study = small_train_study();
  const double losses[] = {none, usual, inverse};
  for (std::size_t s = 0; s < 3; ++s) study.groups[s].runs[0].back().loss = losses[s];
  return study;
}

TEST(StudyTrain, FindingsFollowTheCurves) {
  using Verdict = Finding::Verdict;
  const auto learning = [](const TrainStudy& study) { return findings(study)[1]; };
  const auto flatness = [](const TrainStudy& study) { return findings(study)[4]; };
  EXPECT_EQ(learning(made_study(2.5, 0.25, 1)).verdict, Verdict::holds);
  EXPECT_THAT(learning(made_study(2.5, 0.25, 1)).text,
              HasSubstr("2.500 without a scale and 0.2500"));
  EXPECT_EQ(learning(made_study(0.25, 2.5, 1)).verdict, Verdict::disagrees);
  EXPECT_EQ(flatness(made_study(3, 1, 2)).verdict, Verdict::holds);
  EXPECT_EQ(flatness(made_study(3, 2, 1)).verdict, Verdict::loose);
  TrainStudy turned = small_train_study();
  std::swap(turned.groups[0].runs, turned.groups[2].runs);
  EXPECT_EQ(findings(turned)[0].verdict, Verdict::disagrees);
}

TEST(StudyTrain, ReportsFitWhereTheyGo) {
  testing::expect_stands_alone(to_html(small_train_study()));
  std::istringstream lines(to_text(small_train_study()));
  for (std::string line; std::getline(lines, line);) {
    int columns = 0;
    for (const unsigned char c : line) columns += (c & 0xC0) != 0x80;
    EXPECT_LE(columns, 100) << line;
  }
}

TEST(StudyTrain, RefusesWhatMakesNoSense) {
  const auto refused = [](const char* what, auto change) {
    TrainStudyOptions options = small_run();
    change(options);
    EXPECT_ERROR(what, study_train(options));
  };
  refused("steps", [](TrainStudyOptions& o) { o.steps = 1; });
  refused("reports", [](TrainStudyOptions& o) { o.reports = 0; });
  refused("seeds", [](TrainStudyOptions& o) { o.seeds = 0; });
  refused("layers", [](TrainStudyOptions& o) { o.layers = 0; });
  refused("heads", [](TrainStudyOptions& o) { o.heads = 0; });
  refused("head size", [](TrainStudyOptions& o) { o.head_size = 7; });
  refused("pairs", [](TrainStudyOptions& o) { o.pairs = 17; });
  refused("batch", [](TrainStudyOptions& o) { o.batch = 0; });
  refused("rate", [](TrainStudyOptions& o) { o.lr = std::nan(""); });
  refused("nowhere", [](TrainStudyOptions& o) { o.text_file = "nowhere.txt"; });
}

}  // namespace
}  // namespace qkv
