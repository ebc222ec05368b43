#include "study/curves_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "study/curves.h"
#include "study/page.h"
#include "study/style.h"
#include "study/words.h"

namespace qkv::study {
namespace {

constexpr int kNameWidth = 14, kSparkWidth = 36;

std::vector<std::string> names_of(const std::vector<CurveGroup>& groups) {
  std::vector<std::string> names;
  for (const CurveGroup& group : groups) names.push_back(group.name);
  return names;
}

bool has_spread(const std::vector<CurveGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const CurveGroup& group) { return group.runs.size() > 1; });
}

// The curve's values as they are drawn.
std::vector<double> drawn_values(const std::vector<SpreadPoint>& points, PlotScale scale) {
  std::vector<double> values;
  for (const SpreadPoint& p : points) {
    values.push_back(scale == PlotScale::logarithmic ? std::log10(p.mean) : p.mean);
  }
  return values;
}

std::string value_text(double value, PlotScale scale) {
  return scale == PlotScale::percent ? fmt::format("{:.1f} %", 100 * value) : digits(value, 3);
}

std::string spread_text(const SpreadPoint& p, PlotScale scale) {
  return p.low < p.high ? fmt::format("{} ({} to {})", value_text(p.mean, scale),
                                      value_text(p.low, scale), value_text(p.high, scale))
                        : value_text(p.mean, scale);
}

// Never in the middle of a UTF-8 character.
std::string clipped_name(const std::string& name) {
  if (name.size() <= kNameWidth) return name;
  std::size_t end = kNameWidth - 1;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return name.substr(0, end) + "~";
}

// A line per group: its curve, where it began and where it ended.
std::string column_text(const std::vector<CurveGroup>& groups, const CurveColumn& column) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const CurveGroup& group : groups) {
    for (const double value : drawn_values(spread(group, column.member), column.scale)) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  std::string text = fmt::format("{}\n", column.title);
  for (const CurveGroup& group : groups) {
    const std::vector<SpreadPoint> points = spread(group, column.member);
    if (points.empty()) continue;
    text += fmt::format("  {:<{}} {}  {:>8} -> {}\n", clipped_name(group.name), kNameWidth,
                        sparkline(drawn_values(points, column.scale), low, high, kSparkWidth),
                        value_text(points.front().mean, column.scale),
                        spread_text(points.back(), column.scale));
  }
  return text;
}

nlohmann::ordered_json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

}  // namespace

std::string curves_text(const std::vector<CurveGroup>& groups) {
  std::string text;
  for (const CurveColumn& column : kCurveColumns) text += column_text(groups, column) + '\n';
  return text;
}

nlohmann::ordered_json curves_json(const std::vector<CurveGroup>& groups) {
  using Json = nlohmann::ordered_json;
  Json all = Json::array();
  for (const CurveGroup& group : groups) {
    Json runs = Json::array();
    for (const Curve& curve : group.runs) {
      Json columns;
      for (const CurvePoint& point : curve) {
        columns["step"].push_back(point.step);
        for (const CurveColumn& column : kCurveColumns) {
          columns[column.key].push_back(number(point.*column.member));
        }
      }
      runs.push_back(columns);
    }
    all.push_back({{"name", group.name}, {"curves", runs}});
  }
  return all;
}

std::string curves_html(const std::vector<CurveGroup>& groups) {
  std::string html = legend(
      names_of(groups), has_spread(groups) ? "lines: means over seeds · bands: smallest to largest"
                                           : "marks are points of the curve");
  html += "<div class=\"figures\">\n";
  for (const CurveColumn& column : kCurveColumns) {
    html += figure(curve_plot(groups, column), column.caption);
  }
  html +=
      "</div>\n<h2>Where they ended</h2>\n<div class=\"scroll\"><table>\n<thead><tr>"
      "<th scope=\"col\" class=\"name\">run</th><th scope=\"col\">last step</th>";
  for (const CurveColumn& column : kCurveColumns) {
    html += fmt::format("<th scope=\"col\">{}</th>", column.title);
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const CurveGroup& group : groups) {
    const std::vector<SpreadPoint> steps = spread(group, &CurvePoint::loss);
    html += fmt::format("<tr><th scope=\"row\" class=\"name\">{}</th><td>{}</td>",
                        pretty(group.name), steps.empty() ? 0 : steps.back().step);
    for (const CurveColumn& column : kCurveColumns) {
      const std::vector<SpreadPoint> points = spread(group, column.member);
      html += fmt::format("<td>{}</td>",
                          points.empty() ? "" : spread_text(points.back(), column.scale));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string curves_svg(const std::vector<CurveGroup>& groups,
                       const std::vector<std::string>& keys) {
  std::vector<Plot> plots;
  for (const std::string& key : keys) {
    for (const CurveColumn& column : kCurveColumns) {
      if (column.key == key) plots.push_back(curve_plot(groups, column));
    }
  }
  return drawing(names_of(groups), plots);
}

}  // namespace qkv::study
