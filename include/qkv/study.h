// Experiments on the library's own statistics and gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qkv/optimizer_rule.h"

namespace qkv {

// Why 1/sqrt(d_k)? For each head size and scale: what the scores, the weights and the gradients
// look like when the entries of q and k are normal with variance `input_variance`, and those of v
// and of d loss / d out with variance 1.
struct ScaleStudyOptions {
  std::vector<std::int64_t> head_sizes{16, 32, 64, 128, 256, 512, 1024};
  std::int64_t keys = 256;       // n
  std::int64_t queries = 256;    // rows per trial
  std::int64_t value_size = 64;  // the same for every d_k, so that gradients can be compared
  std::int64_t trials = 32;      // independent draws; standard errors come from their spread
  double input_variance = 1;     // s^2
  std::uint64_t seed = 1;
  std::function<void(int done, int total)> progress{};
};

// A mean and its standard error.
struct Measured {
  double mean = 0, standard_error = 0;
};

// What the library measured beside what theory expects. The expectation is a formula (standard
// error 0) or a Monte Carlo mean in double precision of the same distribution, without the
// library's kernels.
struct Quantity {
  Measured measured;
  std::optional<Measured> expected{};

  // How far apart the two are, in standard errors of their difference.
  double deviation() const;
};

inline constexpr double kDisagreement = 4;  // standard errors from which on a row is flagged

struct ScaleStudyRow {
  std::int64_t head_size = 0;
  std::string scale_name;  // "none", "1/sqrt(d_k)", "1/d_k"
  double scale = 0;
  double input_variance = 1;
  Quantity score_variance;          // expected: scale^2 * d_k * s^4
  Quantity score_magnitude;         // root mean square of a score
  Quantity max_logit;               // the largest score of a trial
  Quantity top_weight;              // the largest weight of a row
  Quantity entropy;                 // of a row, in nats
  Quantity entropy_relative;        // entropy / log n
  Quantity saturation;              // share of rows whose largest weight is above 0.99
  Quantity gradient_scores;         // root mean square over rows of |d loss / d scores_i|
  Quantity gradient_scores_median;  // the row in the middle
  Quantity gradient_q;              // root mean square over rows of |d loss / d q_i|
  Quantity gradient_k;              // ... of |d loss / d k_j|
};

struct ScaleStudy {
  ScaleStudyOptions options;
  std::string target;  // what it ran on
  int threads = 1;
  std::vector<ScaleStudyRow> rows;           // head sizes x scales
  std::vector<ScaleStudyRow> variance_rows;  // one head size, other input variances
};

// Throws Error when an option makes no sense.
ScaleStudy study_scale(const ScaleStudyOptions& options = {});

// What the numbers say about common statements, in words made from the measured numbers.
struct Finding {
  enum class Verdict : std::uint8_t { holds, loose, disagrees };
  Verdict verdict = Verdict::holds;
  std::string text;
};
std::vector<Finding> findings(const ScaleStudy& study);

std::string to_text(const ScaleStudy& study);  // for a terminal, 100 columns
std::string to_json(const ScaleStudy& study);
// A self-contained page: findings, SVG plots and tables; no scripts, no network.
std::string to_html(const ScaleStudy& study);

// One report of a training run, over all of its heads.
struct CurvePoint {
  std::int64_t step = 0;
  double loss = 0;        // the mean over tokens since the last report
  double max_logit = 0;   // the largest of any head
  double entropy = 0;     // the mean over heads of H / log(keys): 1 = uniform, 0 = one key
  double saturation = 0;  // the mean over heads of the share of rows with a weight above 0.99
  // Norms of d loss / d q and d loss / d k, of all heads together.
  double q_gradient = 0, k_gradient = 0;
};
using Curve = std::vector<CurvePoint>;
// Runs that are drawn alike: one, or the same with several seeds.
struct CurveGroup {
  std::string name;
  std::vector<Curve> runs{};
};

// Why 1/sqrt(d_k)? One small decoder, trained from the same weights on the same batches with each
// of the scales none, 1/sqrt(d_k) and 1/d_k. Weights are drawn so that the entries of q and k begin
// with variance 1 (Glorot & Bengio 2010), which is what the usual argument assumes.
struct TrainStudyOptions {
  std::int64_t steps = 400;
  std::int64_t reports = 50;  // points of a curve
  std::uint64_t seed = 1;     // of weights and batches
  std::int64_t seeds = 1;     // runs of each scale, with seed, seed + 1, ...
  std::int64_t layers = 2, heads = 1, head_size = 64;
  std::int64_t batch = 32;  // rows
  OptimizerRule rule = OptimizerRule::adamw;
  double lr = 3e-3;  // constant, after a warm-up of a tenth of the steps
  // Bytes of this file are predicted, in rows of `length`. Empty: associative recall; a row tells
  // the values of `pairs` keys and then asks for the value of each.
  std::string text_file{};
  std::int64_t length = 64, pairs = 8;
  std::function<void(int done, int total)> progress{};
};

struct TrainStudy {
  TrainStudyOptions options;
  std::string target;  // what it ran on
  int threads = 1;
  std::int64_t parameters = 0;  // of the model
  double guessing = 0;          // the loss of one who knows the vocabulary and nothing else
  std::vector<double> scales;
  std::vector<CurveGroup> groups;  // one per scale: "none", "1/sqrt(d_k)", "1/d_k"
};

// Throws Error when an option makes no sense or a loss is not finite.
TrainStudy study_train(const TrainStudyOptions& options = {});
std::vector<Finding> findings(const TrainStudy& study);
std::string to_text(const TrainStudy& study);  // a table and small curves, 100 columns
std::string to_json(const TrainStudy& study);
std::string to_html(const TrainStudy& study);

// The curves of finished or growing runs of `qkv train`, each named by its folder.
struct RunsStudy {
  std::vector<CurveGroup> groups;
};
// Reads metrics.jsonl of each folder. One without a report is an Error.
RunsStudy study_runs(const std::vector<std::string>& folders);
std::string to_text(const RunsStudy& study);
std::string to_json(const RunsStudy& study);
std::string to_html(const RunsStudy& study);
std::string to_svg(const RunsStudy& study);  // loss and largest logit, side by side

}  // namespace qkv
