// The scaling study as one HTML page that needs nothing else.
#include <fmt/format.h>

#include <algorithm>

#include "qkv/version.h"
#include "study/scale_report.h"
#include "study/scale_style.h"
#include "study/svg.h"

namespace qkv {
namespace study {
namespace {

struct ScaleStyle {
  const char* name;
  const char* style;  // class and shape of its marks
  const char* shape;  // the shape as a character, for the legend
};
constexpr ScaleStyle kStyles[] = {
    {"none", "a", "●"}, {"1/sqrt(d_k)", "b", "■"}, {"1/d_k", "c", "▲"}};

// sqrt and indices as people write them; the names in data stay plain.
std::string pretty(std::string text) {
  const auto replace = [&text](const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  };
  text = escaped(text);
  replace("sqrt(d_k)", "√d<sub>k</sub>");
  replace("d_k", "d<sub>k</sub>");
  return text;
}

std::string badge(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::holds: return "<span class=\"badge holds\">holds</span>";
    case Finding::Verdict::loose: return "<span class=\"badge loose\">loose</span>";
    case Finding::Verdict::disagrees: return "<span class=\"badge off\">disagrees</span>";
  }
  return {};
}

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
  plot.percent = column.unit == Unit::percent;
  for (const ScaleStyle& style : kStyles) {
    PlotSeries series;
    series.style = style.style;
    for (const ScaleStudyRow& row : rows) {
      if (row.scale_name != style.name) continue;
      const double x = against_variance ? row.input_variance : static_cast<double>(row.head_size);
      series.points.push_back(point_of(row, x, column));
      const auto& expected = (row.*column.member).expected;
      if (expected) series.line.push_back({x, expected->mean, 0, {}});
      plot.x_ticks.push_back(x);
    }
    const auto by_x = [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; };
    std::sort(series.points.begin(), series.points.end(), by_x);
    std::sort(series.line.begin(), series.line.end(), by_x);
    plot.description += fmt::format("Scale {}: ", style.name);
    for (const PlotPoint& p : series.points) {
      plot.description += fmt::format("{:g} at {:g}; ", p.y, p.x);
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  std::sort(plot.x_ticks.begin(), plot.x_ticks.end());
  plot.x_ticks.erase(std::unique(plot.x_ticks.begin(), plot.x_ticks.end()), plot.x_ticks.end());
  return plot;
}

std::string figure(Plot plot, bool log_y, const std::string& caption) {
  plot.log_y = log_y;
  return fmt::format("<figure>\n<figcaption><strong>{}</strong> {}</figcaption>\n{}</figure>\n",
                     pretty(plot.title), caption, to_svg(plot));
}

const Column& column_of(const std::string& key) {
  return *std::find_if(kColumns.begin(), kColumns.end(),
                       [&](const Column& column) { return column.key == key; });
}

std::string figures(const ScaleStudy& study) {
  const auto plot = [&](const char* key) { return make_plot(study.rows, column_of(key), false); };
  std::string html = "<div class=\"legend\" aria-label=\"Legend\">";
  for (const ScaleStyle& style : kStyles) {
    html += fmt::format("<span class=\"series-{}\"><b>{}</b> scale {}</span>", style.style,
                        style.shape, pretty(style.name));
  }
  html +=
      "<span class=\"muted\">marks: measured, bars ± 2 standard errors · lines: expected"
      "</span></div>\n<div class=\"figures\">\n";
  html += figure(plot("score_variance"), true, "proportional to d<sub>k</sub> without a scale");
  auto rows = study.variance_rows;
  for (const ScaleStudyRow& row : study.rows) {
    const bool same_size = row.head_size == study.variance_rows.front().head_size;
    if (same_size && row.scale_name != "1/d_k") rows.push_back(row);
  }
  Plot other = make_plot(rows, column_of("score_variance"), true);
  other.title = fmt::format("variance of a score, d_k = {}", rows.front().head_size);
  html += figure(other, true, "grows as s⁴, whatever the scale");
  html +=
      figure(plot("score_magnitude"), true, "√d<sub>k</sub> without a scale, not d<sub>k</sub>");
  html += figure(plot("top_weight"), false, "of a row, on average");
  html += figure(plot("entropy_relative"), false, "1 is an average over all keys, 0 is one key");
  html += figure(plot("saturation"), false, "one weight above 0.99");
  html += figure(plot("gradient_scores"), true, "what the softmax lets through, root mean square");
  html += figure(plot("gradient_scores_median"), true, "half of the rows have less; measured only");
  html += figure(plot("gradient_q"), true, "root mean square norm per query");
  html += figure(plot("gradient_k"), true, "root mean square norm per key");
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
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
      "<title>Why 1/√d_k? A measurement</title>\n<style>\n";
  html += study::kStyleSheet;
  html += "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>Why 1/√d<sub>k</sub>?</h1>\n";
  html += fmt::format(
      "<p class=\"lead\">The usual reasons for scaled dot-product attention, measured through the "
      "attention of qkv {}: its own score statistics, its own gradients.</p>\n"
      "<p class=\"muted\">{}; {} with {} thread{}</p>\n</header>\n<section>\n<h2>Findings</h2>\n"
      "<ul class=\"findings\">\n",
      kVersion, pretty(study::describe(study.options)), study::escaped(study.target), study.threads,
      study.threads == 1 ? "" : "s");
  for (const Finding& finding : findings(study)) {
    html +=
        fmt::format("<li>{}<p>{}</p></li>\n", study::badge(finding.verdict), pretty(finding.text));
  }
  html += "</ul>\n</section>\n<section>\n<h2>Plots</h2>\n" + study::figures(study) +
          "</section>\n<section>\n<h2>Numbers</h2>\n";
  html += study::table(study.rows,
                       "Measured mean ± standard error; below it, smaller, the expectation", false);
  html += study::table(study.variance_rows,
                       fmt::format("Other input variances, d<sub>k</sub> = {}",
                                   study.variance_rows.front().head_size),
                       true);
  html += "</section>\n<section class=\"method\">\n<h2>How it was measured</h2>\n";
  html += study::kMethod;
  return html + "</section>\n</main>\n</body>\n</html>\n";
}

}  // namespace qkv
