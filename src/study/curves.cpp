#include "study/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace qkv::study {
namespace {

constexpr std::size_t kMarks = 8;  // along a curve: enough to tell its shape

const PlotStyle& style_of(std::size_t group) { return kStyles[group % std::size(kStyles)]; }

}  // namespace

CurvePoint point_of(std::int64_t step, double loss, const std::vector<HeadHealth>& health) {
  CurvePoint point{.step = step, .loss = loss};
  if (health.empty()) {  // not reported: nothing is drawn
    point.max_logit = point.entropy = point.saturation = std::nan("");
    point.q_gradient = point.k_gradient = std::nan("");
    return point;
  }
  point.max_logit = health.front().max_logit;
  for (const HeadHealth& h : health) {
    point.max_logit = std::max(point.max_logit, h.max_logit);
    point.entropy += h.entropy / static_cast<double>(health.size());
    point.saturation += h.saturation / static_cast<double>(health.size());
    point.q_gradient = std::hypot(point.q_gradient, h.q_grad_norm);
    point.k_gradient = std::hypot(point.k_gradient, h.k_grad_norm);
  }
  return point;
}

std::vector<SpreadPoint> spread(const CurveGroup& group, double CurvePoint::*member) {
  std::vector<SpreadPoint> points;
  std::size_t shortest = group.runs.empty() ? 0 : group.runs.front().size();
  for (const Curve& run : group.runs) shortest = std::min(shortest, run.size());
  for (std::size_t i = 0; i < shortest; ++i) {
    const CurvePoint& first = group.runs.front()[i];
    SpreadPoint point{static_cast<double>(first.step), 0, first.*member, first.*member};
    for (const Curve& run : group.runs) {
      const double value = run[i].*member;
      point.mean += value / static_cast<double>(group.runs.size());
      point.low = std::min(point.low, value);
      point.high = std::max(point.high, value);
    }
    points.push_back(point);
  }
  return points;
}

Plot curve_plot(const std::vector<CurveGroup>& groups, const CurveColumn& column) {
  Plot plot;
  plot.id = column.key;
  plot.title = plot.y_label = column.title;
  plot.x_label = "step";
  plot.x = PlotScale::linear;
  plot.y = column.scale;
  double last = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<SpreadPoint> points = spread(groups[g], column.member);
    PlotSeries series;
    series.style = style_of(g).style;
    const std::size_t every = std::max<std::size_t>(1, points.size() / kMarks);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const SpreadPoint& p = points[i];
      last = std::max(last, p.step);
      series.line.push_back({p.step, p.mean, 0, {}});
      if (groups[g].runs.size() > 1) {
        series.band.push_back({p.step, (p.low + p.high) / 2, (p.high - p.low) / 2, {}});
      }
      // Each group starts elsewhere, so that marks of equal curves do not hide each other.
      if (i % every != (g * every / std::max<std::size_t>(1, groups.size())) % every) continue;
      series.points.push_back({p.step, p.mean, 0,
                               fmt::format("{}, step {:.0f}: {} {:.4g}", groups[g].name, p.step,
                                           column.title, p.mean)});
    }
    if (!points.empty()) {
      plot.description += fmt::format("{}: from {:.3g} to {:.3g} at step {:.0f}. ", groups[g].name,
                                      points.front().mean, points.back().mean, points.back().step);
    }
    plot.series.push_back(std::move(series));
  }
  plot.x_ticks = round_ticks(0, last);
  return plot;
}

std::string sparkline(const std::vector<double>& values, double low, double high, int width) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr int kLast = static_cast<int>(std::size(kBlocks)) - 1;
  std::string line;
  for (int i = 0; i < width; ++i) {
    if (values.empty()) break;
    // The columns share the values out: the first has the first, the last has the last.
    const double at = width > 1 ? static_cast<double>(i) / (width - 1) : 1;
    const auto index =
        static_cast<std::size_t>(std::lround(at * static_cast<double>(values.size() - 1)));
    const double value = values[index];
    if (!std::isfinite(value)) {
      line += "·";
      continue;
    }
    const double t = high > low ? (value - low) / (high - low) : 0;
    line += kBlocks[std::clamp(static_cast<int>(std::lround(t * kLast)), 0, kLast)];
  }
  return line;
}

}  // namespace qkv::study
