// study_scale: the claims about 1/sqrt(d_k), measured.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"
#include "study/scale_samples.h"
#include "study/scales.h"

namespace qkv {
namespace {

using study::kScales;

constexpr std::int64_t kMaxHeadSize = 1024;
constexpr std::int64_t kMaxLength = 16384;  // the study keeps one queries x keys gradient

// Other input variances are measured without a scale and with the usual one.
constexpr std::size_t kScalesForVariance = 2;

void check_options(const ScaleStudyOptions& options) {
  check(!options.head_sizes.empty(), "study scale: no head sizes given");
  for (const std::int64_t d : options.head_sizes) {
    check(d >= 1 && d <= kMaxHeadSize, "study scale: a head size must be 1 to {}, got {}",
          kMaxHeadSize, d);
  }
  check(options.keys >= 2 && options.keys <= kMaxLength,
        "study scale: keys must be 2 to {}, got {}", kMaxLength, options.keys);
  check(options.queries >= 1 && options.queries <= kMaxLength,
        "study scale: queries must be 1 to {}, got {}", kMaxLength, options.queries);
  check(options.value_size >= 1 && options.value_size <= kMaxHeadSize,
        "study scale: the value size must be 1 to {}, got {}", kMaxHeadSize, options.value_size);
  check(options.trials >= 2 && options.trials <= 100000,
        "study scale: trials must be 2 to 100000 (one has no standard error), got {}",
        options.trials);
  check(options.input_variance > 0 && options.input_variance <= 1000,
        "study scale: the input variance must be above 0 and at most 1000, got {}",
        options.input_variance);
}

ScaleStudyRow summarize(const study::Samples& measured, const study::Samples& expected) {
  using study::mean_of;
  using study::root;
  using study::Sample;
  const auto both = [&](double Sample::*member) {
    return Quantity{mean_of(measured, member), mean_of(expected, member)};
  };
  const auto roots = [&](double Sample::*member) {
    return Quantity{root(mean_of(measured, member)), root(mean_of(expected, member))};
  };
  ScaleStudyRow row;
  row.score_variance.measured = mean_of(measured, &Sample::score_square);
  row.score_magnitude.measured = root(row.score_variance.measured);
  row.max_logit.measured = mean_of(measured, &Sample::max_logit);
  row.top_weight = both(&Sample::top_weight);
  row.entropy = both(&Sample::entropy);
  row.entropy_relative = both(&Sample::entropy_relative);
  row.saturation = both(&Sample::saturation);
  row.gradient_scores = roots(&Sample::gradient_scores_square);
  row.gradient_scores_median.measured = mean_of(measured, &Sample::gradient_scores_median);
  row.gradient_q = roots(&Sample::gradient_q_square);
  row.gradient_k = roots(&Sample::gradient_k_square);
  return row;
}

study::ScaleCase make_case(std::int64_t head_size, double variance, std::size_t scales) {
  study::ScaleCase which{head_size, variance, {}};
  for (std::size_t i = 0; i < scales; ++i) {
    which.scales.push_back(kScales[i].of(static_cast<double>(head_size)));
  }
  return which;
}

void run_case(const ScaleStudyOptions& options, const study::ScaleCase& which,
              const std::function<void()>& step, std::vector<ScaleStudyRow>& rows) {
  const auto measured = study::measure(options, which, step);
  const auto expected = study::expect(options, which);
  for (std::size_t i = 0; i < which.scales.size(); ++i) {
    ScaleStudyRow row = summarize(measured[i], expected[i]);
    row.head_size = which.head_size;
    row.scale_name = kScales[i].name;
    row.scale = which.scales[i];
    row.input_variance = which.input_variance;
    const double variance = row.scale * row.scale * static_cast<double>(row.head_size) *
                            row.input_variance * row.input_variance;
    row.score_variance.expected = Measured{variance, 0};
    row.score_magnitude.expected = Measured{std::sqrt(variance), 0};
    rows.push_back(row);
  }
}

}  // namespace

double Quantity::deviation() const {
  if (!expected) return 0;
  // The library's statistics are f32: where there is almost no spread (weights that are all but
  // equal), their rounding is the error that remains.
  const double rounding = 2e-6 * std::abs(expected->mean);
  const double error = std::hypot(measured.standard_error, expected->standard_error, rounding);
  const double distance = std::abs(measured.mean - expected->mean);
  return distance == 0 ? 0 : distance / std::max(error, 1e-300);
}

ScaleStudy study_scale(const ScaleStudyOptions& wanted) {
  check_options(wanted);
  ScaleStudyOptions options = wanted;
  auto& sizes = options.head_sizes;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  // 512 is the size that the common statements are made about.
  const bool has_512 = std::find(sizes.begin(), sizes.end(), 512) != sizes.end();
  const std::int64_t one_size = has_512 ? 512 : sizes.back();

  std::vector<study::ScaleCase> cases, other_cases;
  for (const std::int64_t d : sizes) {
    cases.push_back(make_case(d, options.input_variance, kScales.size()));
  }
  for (const double variance : {0.5, 1.0, 2.0, 4.0}) {
    if (variance == options.input_variance) continue;
    other_cases.push_back(make_case(one_size, variance, kScalesForVariance));
  }

  int done = 0, total = 0;
  for (const auto* list : {&cases, &other_cases}) {
    for (const auto& which : *list) total += study::measured_steps(options, which);
  }
  const auto step = [&] {
    if (options.progress) options.progress(++done, total);
  };

  ScaleStudy result;
  result.options = options;
  result.options.progress = nullptr;
  result.target = cpu_target();
  result.threads = num_threads();
  for (const auto& which : cases) run_case(options, which, step, result.rows);
  for (const auto& which : other_cases) run_case(options, which, step, result.variance_rows);
  return result;
}

}  // namespace qkv
