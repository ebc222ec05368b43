// What the measured numbers say about what people say. Every number in these sentences, and every
// verdict that depends on one, comes from the study at hand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "study/scale_report.h"

namespace qkv {
namespace study {
namespace {

using Verdict = Finding::Verdict;
using Rows = std::vector<const ScaleStudyRow*>;

Rows rows_of(const ScaleStudy& study, const std::string& scale_name) {
  Rows rows;
  for (const ScaleStudyRow& row : study.rows) {
    if (row.scale_name == scale_name) rows.push_back(&row);
  }
  return rows;
}

bool variances_agree(const Rows& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const ScaleStudyRow* row) {
    return row->score_variance.deviation() <= kDisagreement;
  });
}

// The exponent b of variance = a * d_k^b, by least squares of the logarithms.
double growth_exponent(const Rows& rows) {
  double x_mean = 0, y_mean = 0, xy = 0, xx = 0;
  const auto n = static_cast<double>(rows.size());
  const auto x = [](const ScaleStudyRow* r) { return std::log(static_cast<double>(r->head_size)); };
  const auto y = [](const ScaleStudyRow* r) { return std::log(r->score_variance.measured.mean); };
  for (const auto* row : rows) {
    x_mean += x(row) / n;
    y_mean += y(row) / n;
  }
  for (const auto* row : rows) {
    xy += (x(row) - x_mean) * (y(row) - y_mean);
    xx += (x(row) - x_mean) * (x(row) - x_mean);
  }
  return xx > 0 ? xy / xx : std::nan("");
}

Finding variance_growth(const ScaleStudy& study) {
  const Rows none = rows_of(study, "none"), usual = rows_of(study, "1/sqrt(d_k)");
  const auto by_variance = [](const ScaleStudyRow* a, const ScaleStudyRow* b) {
    return a->score_variance.measured.mean < b->score_variance.measured.mean;
  };
  const auto [low, high] = std::minmax_element(usual.begin(), usual.end(), by_variance);
  std::string text = "The variance of an unscaled score grows in proportion to d_k";
  const double exponent = growth_exponent(none);
  if (std::isfinite(exponent)) text += fmt::format(" (fitted exponent {:.3f})", exponent);
  text += fmt::format(
      ": {} at d_k = {}. 1/sqrt(d_k) makes it independent of d_k: between {} and {}.",
      with_error(none.back()->score_variance.measured), none.back()->head_size,
      digits((*low)->score_variance.measured.mean), digits((*high)->score_variance.measured.mean));
  const bool agree = variances_agree(none) && variances_agree(usual);
  return {agree ? Verdict::holds : Verdict::disagrees, text};
}

Finding typical_score(const ScaleStudy& study) {
  const std::int64_t d = headline_size(study);
  const ScaleStudyRow& row = *find_row(study.rows, d, "none");
  return {Verdict::loose,
          fmt::format("\"Dot products grow as large as d_k.\" Their variance does; a score itself "
                      "grows as sqrt(d_k): at d_k = {} an unscaled score is typically {} (expected "
                      "{}), not {}, and the largest of the {} in a trial is {}.",
                      d, with_error(row.score_magnitude.measured),
                      digits(row.score_magnitude.expected->mean), d,
                      study.options.keys * study.options.queries,
                      digits(row.max_logit.measured.mean, 3))};
}

Finding input_variance(const ScaleStudy& study) {
  // s^2 = 2 where the study has it beside its own input variance, else the first there is.
  double variance = study.variance_rows.front().input_variance;
  for (const ScaleStudyRow& row : study.variance_rows) {
    if (row.input_variance == 2) variance = 2;
  }
  std::string text = fmt::format(
      "\"1/sqrt(d_k) gives scores of variance 1.\" Only for inputs of variance 1: with "
      "inputs of variance s² a score has variance d_k s⁴. Measured with s² = {:g} at d_k "
      "= {}:",
      variance, study.variance_rows.front().head_size);
  for (const ScaleStudyRow& row : study.variance_rows) {
    if (row.input_variance != variance) continue;
    text +=
        fmt::format(" {} with scale {} (expected {}){}", with_error(row.score_variance.measured),
                    row.scale_name, digits(row.score_variance.expected->mean),
                    row.scale_name == "none" ? "," : ".");
  }
  return {Verdict::loose, text};
}

Finding concentration(const ScaleStudy& study) {
  const std::int64_t d = headline_size(study);
  const ScaleStudyRow& none = *find_row(study.rows, d, "none");
  const ScaleStudyRow& usual = *find_row(study.rows, d, "1/sqrt(d_k)");
  const ScaleStudyRow& inverse = *find_row(study.rows, d, "1/d_k");
  const auto part = [](const ScaleStudyRow& row) {
    return fmt::format("the largest weight is {} and the entropy {} of log n",
                       digits(row.top_weight.measured.mean, 3),
                       in_unit(row.entropy_relative.measured.mean, Unit::percent));
  };
  const bool concentrates =
      none.entropy_relative.measured.mean < usual.entropy_relative.measured.mean;
  return {concentrates ? Verdict::holds : Verdict::disagrees,
          fmt::format("Large scores make the softmax pick one key. At d_k = {} without a scale {}, "
                      "and {} of the rows are saturated (one weight above 0.99); with 1/sqrt(d_k) "
                      "{} ({} saturated); with 1/d_k {}: almost an average (1/n = {}).",
                      d, part(none), in_unit(none.saturation.measured.mean, Unit::percent),
                      part(usual), in_unit(usual.saturation.measured.mean, Unit::percent),
                      part(inverse), digits(1.0 / static_cast<double>(study.options.keys), 3))};
}

Finding gradients(const ScaleStudy& study) {
  const std::int64_t d = headline_size(study);
  const ScaleStudyRow& none = *find_row(study.rows, d, "none");
  const ScaleStudyRow& usual = *find_row(study.rows, d, "1/sqrt(d_k)");
  const ScaleStudyRow& inverse = *find_row(study.rows, d, "1/d_k");
  const double q = none.gradient_q.measured.mean, q_usual = usual.gradient_q.measured.mean;
  return {q < q_usual ? Verdict::holds : Verdict::loose,
          fmt::format(
              "\"Without the scale the gradient vanishes.\" At d_k = {} the gradient at the scores "
              "of the median row is {} than with 1/sqrt(d_k) ({} against {}), its root mean square "
              "{}: rows that are not yet saturated carry it. The gradient at Q, which the "
              "scale multiplies once more, is {} than with 1/sqrt(d_k) ({} against {}), at K {}; "
              "with 1/d_k it is {} at Q.",
              d,
              compare(none.gradient_scores_median.measured.mean,
                      usual.gradient_scores_median.measured.mean),
              digits(none.gradient_scores_median.measured.mean, 3),
              digits(usual.gradient_scores_median.measured.mean, 3),
              compare(none.gradient_scores.measured.mean, usual.gradient_scores.measured.mean),
              compare(q, q_usual), digits(q, 3), digits(q_usual, 3),
              compare(none.gradient_k.measured.mean, usual.gradient_k.measured.mean),
              compare(inverse.gradient_q.measured.mean, q_usual))};
}

Finding agreement(const ScaleStudy& study) {
  int compared = 0;
  double worst = 0;
  std::string where, disagreements;
  for (const auto* rows : {&study.rows, &study.variance_rows}) {
    for (const ScaleStudyRow& row : *rows) {
      for (const Column& column : kColumns) {
        const Quantity& quantity = row.*column.member;
        if (!quantity.expected) continue;
        ++compared;
        const double deviation = quantity.deviation();
        const std::string name = fmt::format("{} at d_k = {}, scale {}, s² = {:g}", column.title,
                                             row.head_size, row.scale_name, row.input_variance);
        if (deviation > worst) {
          worst = deviation;
          where = name;
        }
        if (deviation <= kDisagreement) continue;
        disagreements += fmt::format("{}{} ({:.1f} standard errors: measured {}, expected {})",
                                     disagreements.empty() ? "" : "; ", name, deviation,
                                     with_error(quantity.measured, column.unit),
                                     with_error(*quantity.expected, column.unit));
      }
    }
  }
  if (!disagreements.empty()) {
    return {Verdict::disagrees,
            fmt::format("Measured and expected differ by more than {:g} standard errors: {}.",
                        kDisagreement, disagreements)};
  }
  return {Verdict::holds,
          fmt::format("All {} measured means are within {:g} standard errors of their expectation; "
                      "the largest distance is {:.1f} ({}).",
                      compared, kDisagreement, worst, where)};
}

}  // namespace
}  // namespace study

std::vector<Finding> findings(const ScaleStudy& study) {
  return {study::variance_growth(study), study::typical_score(study), study::input_variance(study),
          study::concentration(study),   study::gradients(study),     study::agreement(study)};
}

}  // namespace qkv
