#include "study/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace qkv::study {
namespace {

// Of the drawing, in its own units; the page scales it.
constexpr double kWidth = 520, kHeight = 330;
constexpr double kLeft = 62, kRight = 14, kTop = 14, kBottom = 50;
constexpr int kMaxDecadeLabels = 7;

struct Axes {
  double x_low, x_high, y_low, y_high;  // logarithms where the axis is logarithmic
  bool log_y;

  double x(double value) const {
    const double t = x_high > x_low ? (std::log(value) - x_low) / (x_high - x_low) : 0.5;
    return kLeft + t * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double at = log_y ? std::log10(value) : value;
    return kHeight - kBottom - (at - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
  bool shows(double value) const { return !log_y || value > 0; }
};

Axes axes_of(const Plot& plot) {
  const auto [low, high] = std::minmax_element(plot.x_ticks.begin(), plot.x_ticks.end());
  // Room beside the first and last mark.
  Axes axes{std::log(*low) - 0.25, std::log(*high) + 0.25, 0, 1, plot.log_y};
  if (!plot.log_y) {
    axes.y_low = -0.02;  // a mark at 0 or 1 is seen whole
    axes.y_high = 1.02;
    return axes;
  }
  double smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (const PlotSeries& series : plot.series) {
    for (const auto* points : {&series.points, &series.line}) {
      for (const PlotPoint& point : *points) {
        if (point.y <= 0) continue;
        smallest = std::min(smallest, point.y);
        largest = std::max(largest, point.y);
      }
    }
  }
  if (largest == 0) smallest = largest = 1;
  axes.y_low = std::floor(std::log10(smallest) - 0.05);
  axes.y_high = std::ceil(std::log10(largest) + 0.05);
  return axes;
}

std::string horizontal(const Axes& axes, double value, const std::string& label) {
  const double y = axes.y(value);
  return fmt::format(
      "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
      "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
      kLeft, kWidth - kRight, y, y, kLeft - 8, y + 4, label);
}

std::string decade(int exponent) {
  if (exponent >= -2 && exponent <= 4) return fmt::format("{:g}", std::pow(10, exponent));
  return fmt::format("10<tspan dy=\"-5\" font-size=\"9\">{}{}</tspan>", exponent < 0 ? "−" : "",
                     std::abs(exponent));
}

// Escaped, with d_k as people write it.
std::string label_text(const std::string& text) {
  std::string safe = escaped(text);
  const std::string plain = "d_k", index = "d<tspan dy=\"3\" font-size=\"9\">k</tspan>";
  const std::size_t at = safe.find(plain);
  return at == std::string::npos ? safe : safe.replace(at, plain.size(), index);
}

std::string grid(const Plot& plot, const Axes& axes) {
  std::string svg;
  if (plot.log_y) {
    const int low = static_cast<int>(axes.y_low), high = static_cast<int>(axes.y_high);
    const int every = (high - low) / kMaxDecadeLabels + 1;
    for (int e = low; e <= high; e += every) {
      svg += horizontal(axes, std::pow(10, e), decade(e));
    }
  } else {
    for (int i = 0; i <= 4; ++i) {
      const double value = 0.25 * i;
      svg += horizontal(
          axes, value,
          plot.percent ? fmt::format("{:.0f} %", 100 * value) : fmt::format("{:g}", value));
    }
  }
  for (const double tick : plot.x_ticks) {
    const double x = axes.x(tick);
    svg += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        x, kHeight - kBottom, kHeight - kBottom + 5, kHeight - kBottom + 19, tick);
  }
  const double middle = (kTop + kHeight - kBottom) / 2;
  svg += fmt::format(
      "<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n"
      "<text class=\"label\" x=\"{3}\" y=\"{4}\" text-anchor=\"middle\">{5}</text>\n"
      "<text class=\"label\" transform=\"translate(14 {6}) rotate(-90)\" text-anchor=\"middle\">"
      "{7}</text>\n",
      kLeft, kWidth - kRight, kHeight - kBottom, (kLeft + kWidth - kRight) / 2, kHeight - 10,
      label_text(plot.x_label), middle, label_text(plot.y_label));
  return svg;
}

std::string mark(const std::string& style, double x, double y) {
  if (style == "b") {
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\"/>", x - 4, y - 4);
  }
  if (style == "c") {
    return fmt::format("<path d=\"M{:.1f} {:.1f}l5 9h-10z\"/>", x, y - 5.5);
  }
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>", x, y);
}

std::string draw_series(const PlotSeries& series, const Axes& axes) {
  std::string path;
  for (const PlotPoint& point : series.line) {
    if (!axes.shows(point.y)) continue;
    path +=
        fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.x(point.x), axes.y(point.y));
  }
  std::string svg = fmt::format("<g class=\"series-{}\">\n", series.style);
  if (!path.empty()) svg += fmt::format("<path class=\"line\" d=\"{}\"/>\n", path);
  for (const PlotPoint& point : series.points) {
    if (!axes.shows(point.y)) continue;
    const double x = axes.x(point.x), high = axes.y(point.y + point.error);
    const double low = axes.y(axes.shows(point.y - point.error) ? point.y - point.error : point.y);
    svg += fmt::format(
        "<g class=\"mark\"><title>{}</title><line class=\"bar\" x1=\"{:.1f}\" x2=\"{:.1f}\" "
        "y1=\"{:.1f}\" y2=\"{:.1f}\"/>{}</g>\n",
        escaped(point.label), x, x, high, low, mark(series.style, x, axes.y(point.y)));
  }
  return svg + "</g>\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

std::string to_svg(const Plot& plot) {
  const Axes axes = axes_of(plot);
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"{2}-title {2}-desc\">\n"
      "<title id=\"{2}-title\">{3}</title>\n<desc id=\"{2}-desc\">{4}</desc>\n",
      kWidth, kHeight, plot.id, escaped(plot.title), escaped(plot.description));
  svg += grid(plot, axes);
  for (const PlotSeries& series : plot.series) svg += draw_series(series, axes);
  return svg + "</svg>\n";
}

}  // namespace qkv::study
