// The scaling study for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "study/scale_report.h"

namespace qkv {
namespace study {

std::string with_error(const Measured& value, Unit unit) {
  const double factor = unit == Unit::percent ? 100 : 1;
  const double mean = value.mean * factor, error = value.standard_error * factor;
  const char* suffix = unit == Unit::percent ? " %" : "";
  if (error <= 0) return digits(mean) + suffix;
  const int exponent = static_cast<int>(std::floor(std::log10(error)));
  if (exponent < -7 || exponent > 6) return fmt::format("{:.4g} ± {:.1g}{}", mean, error, suffix);
  // Two digits of the error where its first is 1, so that rounding does not double or halve it.
  const int decimals = std::max(0, -exponent + (error < 2 * std::pow(10, exponent) ? 1 : 0));
  return fmt::format("{:.{}f} ± {:.{}f}{}", mean, decimals, error, decimals, suffix);
}

std::string in_unit(double value, Unit unit) {
  return unit == Unit::percent ? fmt::format("{:.1f} %", 100 * value) : digits(value);
}

const ScaleStudyRow* find_row(const std::vector<ScaleStudyRow>& rows, std::int64_t head_size,
                              const std::string& scale_name) {
  for (const ScaleStudyRow& row : rows) {
    if (row.head_size == head_size && row.scale_name == scale_name) return &row;
  }
  return nullptr;
}

std::int64_t headline_size(const ScaleStudy& study) {
  std::int64_t largest = 0;
  for (const ScaleStudyRow& row : study.rows) {
    if (row.head_size == 512) return 512;
    largest = std::max(largest, row.head_size);
  }
  return largest;
}

std::string describe(const ScaleStudyOptions& options) {
  return fmt::format("n = {} keys, {} queries, {} trials, entries of variance {:g}, seed {}",
                     options.keys, options.queries, options.trials, options.input_variance,
                     options.seed);
}

namespace {

std::string flagged(const std::string& text, const Quantity& quantity) {
  return text + (quantity.deviation() > kDisagreement ? "!" : " ");
}

std::string row_text(const ScaleStudyRow& row) {
  const auto cell = [](const Quantity& quantity, Unit unit = Unit::plain) {
    const double mean = quantity.measured.mean;
    return flagged(unit == Unit::percent ? in_unit(mean, unit) : digits(mean, 3), quantity);
  };
  return fmt::format("  {:>5}  {:>20}{:>10}  {:>9}{:>9}{:>10}  {:>9}{:>9}{:>9}\n", row.head_size,
                     flagged(with_error(row.score_variance.measured), row.score_variance),
                     digits(row.score_variance.expected->mean), cell(row.top_weight),
                     cell(row.entropy_relative), cell(row.saturation, Unit::percent),
                     cell(row.gradient_scores), cell(row.gradient_q), cell(row.gradient_k));
}

std::string tables(const ScaleStudy& study) {
  std::string text;
  for (const char* name : {"none", "1/sqrt(d_k)", "1/d_k"}) {
    text += fmt::format("scale {}\n", name);
    text += fmt::format("  {:>5}  {:>19} {:>10}  {:>8} {:>8} {:>9}   {:>8} {:>8} {:>8}\n", "",
                        "variance of a score", "", "largest", "entropy", "saturated", "gradient",
                        "gradient", "gradient");
    text += fmt::format("  {:>5}  {:>19} {:>10}  {:>8} {:>8} {:>9}   {:>8} {:>8} {:>8}\n", "d_k",
                        "measured", "expected", "weight", "/ log n", "rows", "scores", "Q", "K");
    for (const ScaleStudyRow& row : study.rows) {
      if (row.scale_name == name) text += row_text(row);
    }
    text += '\n';
  }
  return text;
}

std::string variance_table(const ScaleStudy& study) {
  if (study.variance_rows.empty()) return {};
  std::string text = fmt::format("other input variances s², d_k = {}: the variance of a score\n",
                                 study.variance_rows.front().head_size);
  text += fmt::format("  {:>5}  {:<12} {:>19} {:>10}\n", "s²", "scale", "measured", "expected");
  for (const ScaleStudyRow& row : study.variance_rows) {
    text += fmt::format("  {:>5g}  {:<12} {:>20}{:>10}\n", row.input_variance, row.scale_name,
                        flagged(with_error(row.score_variance.measured), row.score_variance),
                        digits(row.score_variance.expected->mean));
  }
  return text + '\n';
}

}  // namespace
}  // namespace study

std::string to_text(const ScaleStudy& study) {
  std::string text = fmt::format(
      "Why 1/sqrt(d_k)?  {}\n"
      "Measured with qkv attention on {} ({} thread{}); ± is one standard error;\n"
      "gradients are root mean square norms per row, for a loss gradient of variance 1 at the "
      "output.\n\n",
      study::describe(study.options), study.target, study.threads, study.threads == 1 ? "" : "s");
  text += study::tables(study) + study::variance_table(study);
  return text + study::findings_text(findings(study));
}

}  // namespace qkv
