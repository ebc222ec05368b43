// The scaling study as one HTML page that needs nothing else.
#include <fmt/format.h>

#include <algorithm>

#include "qkv/version.h"
#include "study/page.h"
#include "study/scale_report.h"
#include "study/scales.h"

namespace qkv {
namespace study {
namespace {

constexpr const char* kMethod = R"html(
<p>For each head size, the entries of q and k are drawn from a normal distribution of mean 0 and
variance s², those of v and of the loss gradient at the output from one of variance 1. Every scale
sees the same draws. A trial is one attention head over the given numbers of queries and keys;
means and standard errors are over the trials, which are independent.</p>
<p>Scores, weights and entropies are the statistics that <code>attention_forward</code> computes in
its own pass; the gradients are those of <code>attention_backward</code>. The gradient at the scores
is the gradient of an additive bias of zeros. Norms are per row (per key for K): the square root of
the mean of their squares.</p>
<p>The expected variance is scale² d<sub>k</sub> s⁴. The other expectations are Monte Carlo means in
double precision that share no code with the attention kernels: given a query, its scores are
scale · |q| · z with z normal, so a row of weights needs one length and n numbers; the gradients are
averaged over v and the loss gradient in closed form. A value is marked when it differs from its
expectation by more than four standard errors of the difference.</p>
)html";

PlotPoint point_of(const ScaleStudyRow& row, double x, const Column& column) {
  const Quantity& quantity = row.*column.member;
  std::string label =
      fmt::format("d_k = {}, scale {}, s² = {:g}: {}", row.head_size, row.scale_name,
                  row.input_variance, with_error(quantity.measured, column.unit));
  if (quantity.expected) {
    label += fmt::format(", expected {}", digits(quantity.expected->mean *
                                                 (column.unit == Unit::percent ? 100 : 1)));
  }
  return {x, quantity.measured.mean, 2 * quantity.measured.standard_error, label};
}

// Quantity against d_k (or against s^2), one series per scale.
Plot make_plot(const std::vector<ScaleStudyRow>& rows, const Column& column,
               bool against_variance) {
  Plot plot;
  plot.id = std::string(against_variance ? "input-" : "") + column.key;
  plot.title = column.title;
  plot.y_label = column.title;
  plot.x_label = against_variance ? "input variance s²" : "head size d_k";
  plot.y = column.unit == Unit::percent ? PlotScale::percent : PlotScale::share;
  for (std::size_t i = 0; i < kScales.size(); ++i) {
    PlotSeries series;
    series.style = kStyles[i].style;
    for (const ScaleStudyRow& row : rows) {
      if (row.scale_name != kScales[i].name) continue;
      const double x = against_variance ? row.input_variance : static_cast<double>(row.head_size);
      series.points.push_back(point_of(row, x, column));
      const auto& expected = (row.*column.member).expected;
      if (expected) series.line.push_back({x, expected->mean, 0, {}});
      plot.x_ticks.push_back(x);
    }
    const auto by_x = [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; };
    std::sort(series.points.begin(), series.points.end(), by_x);
    std::sort(series.line.begin(), series.line.end(), by_x);
    plot.description += fmt::format("Scale {}: ", kScales[i].name);
    for (const PlotPoint& p : series.points) {
      plot.description += fmt::format("{:g} at {:g}; ", p.y, p.x);
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  std::sort(plot.x_ticks.begin(), plot.x_ticks.end());
  plot.x_ticks.erase(std::unique(plot.x_ticks.begin(), plot.x_ticks.end()), plot.x_ticks.end());
  return plot;
}

const Column& column_of(const std::string& key) {
  return *std::find_if(kColumns.begin(), kColumns.end(),
                       [&](const Column& column) { return column.key == key; });
}

std::string figures(const ScaleStudy& study) {
  const auto plot = [&](const char* key) { return make_plot(study.rows, column_of(key), false); };
  const auto log_plot = [&](const char* key) {
    Plot drawn = plot(key);
    drawn.y = PlotScale::logarithmic;
    return drawn;
  };
  std::vector<std::string> names;
  for (const Scale& scale : kScales) names.push_back(std::string("scale ") + scale.name);
  std::string html = legend(names, "marks: measured, bars ± 2 standard errors · lines: expected");
  html += "<div class=\"figures\">\n";
  html += figure(log_plot("score_variance"), "proportional to d<sub>k</sub> without a scale");
  auto rows = study.variance_rows;
  for (const ScaleStudyRow& row : study.rows) {
    const bool same_size = row.head_size == study.variance_rows.front().head_size;
    if (same_size && row.scale_name != "1/d_k") rows.push_back(row);
  }
  Plot other = make_plot(rows, column_of("score_variance"), true);
  other.title = fmt::format("variance of a score, d_k = {}", rows.front().head_size);
  other.y = PlotScale::logarithmic;
  html += figure(other, "grows as s⁴, whatever the scale");
  html += figure(log_plot("score_magnitude"), "√d<sub>k</sub> without a scale, not d<sub>k</sub>");
  html += figure(plot("top_weight"), "of a row, on average");
  html += figure(plot("entropy_relative"), "1 is an average over all keys, 0 is one key");
  html += figure(plot("saturation"), "one weight above 0.99");
  html += figure(log_plot("gradient_scores"), "what the softmax lets through, root mean square");
  html += figure(log_plot("gradient_scores_median"), "half of the rows have less; measured only");
  html += figure(log_plot("gradient_q"), "root mean square norm per query");
  html += figure(log_plot("gradient_k"), "root mean square norm per key");
  return html + "</div>\n";
}

std::string cell(const ScaleStudyRow& row, const Column& column) {
  const Quantity& quantity = row.*column.member;
  const bool off = quantity.deviation() > kDisagreement;
  std::string html = fmt::format("<td{}>{}", off ? " class=\"off\"" : "",
                                 with_error(quantity.measured, column.unit));
  if (off) html += fmt::format(" <b>{:.1f} standard errors off</b>", quantity.deviation());
  if (quantity.expected) {
    html += fmt::format("<span class=\"expected\">{}</span>",
                        in_unit(quantity.expected->mean, column.unit));
  }
  return html + "</td>";
}

// One table; `first` names what differs between its rows.
std::string table(const std::vector<ScaleStudyRow>& rows, const std::string& caption,
                  bool by_variance) {
  std::string html = fmt::format(
      "<div class=\"scroll\"><table><caption>{}</caption>\n<thead><tr><th scope=\"col\">{}</th>"
      "<th scope=\"col\" class=\"name\">scale</th>",
      caption, by_variance ? "s²" : "d<sub>k</sub>");
  for (const Column& column : kColumns) {
    html += fmt::format("<th scope=\"col\">{}</th>", pretty(column.title));
  }
  html += "</tr></thead>\n<tbody>\n";
  std::string group;
  for (const ScaleStudyRow& row : rows) {
    const std::string key =
        by_variance ? fmt::format("{:g}", row.input_variance) : std::to_string(row.head_size);
    html += fmt::format("<tr{}><th scope=\"row\">{}</th><td class=\"name\">{}</td>",
                        key != group ? " class=\"first\"" : "", key, pretty(row.scale_name));
    for (const Column& column : kColumns) html += cell(row, column);
    html += "</tr>\n";
    group = key;
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace
}  // namespace study

std::string to_html(const ScaleStudy& study) {
  using study::pretty;
  std::string html = "<header>\n<h1>Why 1/√d<sub>k</sub>?</h1>\n";
  html += fmt::format(
      "<p class=\"lead\">The usual reasons for scaled dot-product attention, measured through the "
      "attention of qkv {}: its own score statistics, its own gradients.</p>\n"
      "<p class=\"muted\">{}; {}</p>\n</header>\n",
      kVersion, pretty(study::describe(study.options)),
      study::escaped(study::machine_text(study.target, study.threads)));
  html += study::findings_html(findings(study)) + "<section>\n<h2>Plots</h2>\n" +
          study::figures(study) + "</section>\n<section>\n<h2>Numbers</h2>\n";
  html += study::table(study.rows,
                       "Measured mean ± standard error; below it, smaller, the expectation", false);
  html += study::table(study.variance_rows,
                       fmt::format("Other input variances, d<sub>k</sub> = {}",
                                   study.variance_rows.front().head_size),
                       true);
  html += "</section>\n<section class=\"method\">\n<h2>How it was measured</h2>\n";
  html += study::kMethod;
  return study::page("Why 1/√d_k? A measurement", html + "</section>\n");
}

}  // namespace qkv
