// The study of approximations as a drawing: what each loses against what it costs, and Performer
// against the 1/sqrt(features) that theory promises.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "qkv/study_approx.h"
#include "study/page.h"

namespace qkv {
namespace {

using study::Plot;
using study::PlotPoint;
using study::PlotScale;
using study::PlotSeries;

constexpr const char* kMethods[] = {"performer", "longformer", "linformer"};

// Over all heads, for one size of one method.
struct Mean {
  double cost = 0, error = 0, weight_error = 0;
  int count = 0;
};

std::map<std::int64_t, Mean> means_of(const ApproxStudy& study, const std::string& method) {
  std::map<std::int64_t, Mean> means;
  for (const ApproxStudyRow& row : study.rows) {
    if (row.method != method) continue;
    Mean& mean = means[row.size];
    mean.cost = row.cost;
    mean.error += row.output_error;
    mean.weight_error += row.weight_error;
    ++mean.count;
  }
  for (auto& [size, mean] : means) {
    mean.error /= mean.count;
    mean.weight_error /= mean.count;
  }
  return means;
}

// Powers of `base` around the values.
std::vector<double> powers_around(double smallest, double largest, double base) {
  std::vector<double> ticks;
  const double last = std::ceil(std::log(largest) / std::log(base) - 1e-9);
  for (double e = std::floor(std::log(smallest) / std::log(base) + 1e-9); e <= last; ++e) {
    ticks.push_back(std::pow(base, e));
  }
  return ticks;
}

Plot plot_by_cost(const ApproxStudy& study, const char* title, double Mean::*value) {
  Plot plot;
  plot.title = fmt::format("{}, mean over heads, {} tokens", title, study.tokens);
  plot.id = value == &Mean::error ? "by-cost" : "weights-by-cost";
  plot.x_label = "multiply-adds, as a share of exact attention's";
  plot.y_label = title;
  plot.y = PlotScale::logarithmic;
  double smallest = 1, largest = 1;
  for (std::size_t m = 0; m < std::size(kMethods); ++m) {
    PlotSeries series{study::kStyles[m].style, {}, {}, {}};
    for (const auto& [size, mean] : means_of(study, kMethods[m])) {
      const double y = mean.*value;
      series.points.push_back(
          {mean.cost, y, 0, fmt::format("{} {}: {:.3g}", kMethods[m], size, y)});
      smallest = std::min(smallest, mean.cost);
      largest = std::max(largest, mean.cost);
    }
    series.line = series.points;
    plot.series.push_back(std::move(series));
  }
  plot.x_ticks = powers_around(smallest, largest, 4);
  return plot;
}

Plot plot_by_features(const ApproxStudy& study) {
  Plot plot;
  plot.title = "Performer; line: falling as 1/sqrt(features)";
  plot.id = "by-features";
  plot.x_label = "random features";
  plot.y_label = "output error";
  plot.y = PlotScale::logarithmic;
  PlotSeries series{study::kStyles[0].style, {}, {}, {}};
  const std::map<std::int64_t, Mean> means = means_of(study, kMethods[0]);
  if (means.empty()) {
    plot.x_ticks = {1, 2};
    return plot;
  }
  const auto last_features = static_cast<double>(means.rbegin()->first);
  const double last_error = means.rbegin()->second.error;
  for (const auto& [size, mean] : means) {
    const auto x = static_cast<double>(size);
    series.points.push_back(
        {x, mean.error, 0, fmt::format("{} features: {:.3g}", size, mean.error)});
    series.line.push_back({x, last_error * std::sqrt(last_features / x), 0, {}});
  }
  plot.x_ticks = powers_around(series.points.front().x, last_features, 4);
  plot.series.push_back(std::move(series));
  return plot;
}

}  // namespace

std::string to_svg(const ApproxStudy& study) {
  return study::drawing(
      {std::begin(kMethods), std::end(kMethods)},
      {plot_by_cost(study, "output error", &Mean::error),
       plot_by_cost(study, "weight error", &Mean::weight_error), plot_by_features(study)});
}

}  // namespace qkv
