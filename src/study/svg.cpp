#include "study/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "io/shown.h"

namespace qkv::study {
namespace {

// Of the drawing, in its own units; the page scales it.
constexpr double kWidth = 520, kHeight = 330;
constexpr double kLeft = 62, kRight = 14, kTop = 14, kBottom = 50;
constexpr int kMaxDecadeLabels = 7;

// A range of values, and where they are drawn; logarithms where the axis is logarithmic.
struct Axis {
  double low, high;  // of `at`
  bool logarithmic;
  double from, to;  // in the drawing

  double at(double value) const { return logarithmic ? std::log10(value) : value; }
  double operator()(double value) const {
    const double t = high > low ? (at(value) - low) / (high - low) : 0.5;
    return from + t * (to - from);
  }
  bool shows(double value) const { return std::isfinite(value) && (!logarithmic || value > 0); }
};

struct Axes {
  Axis x, y;
  std::vector<double> y_ticks{};  // of a linear one
  bool shows(const PlotPoint& point) const { return x.shows(point.x) && y.shows(point.y); }
};

// The smallest and largest y that can be drawn; both 1 where there is none.
std::pair<double, double> range_of(const Plot& plot) {
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  const Axis axis{0, 1, plot.y == PlotScale::logarithmic, 0, 1};
  for (const PlotSeries& series : plot.series) {
    for (const auto* points : {&series.points, &series.line, &series.band}) {
      for (const PlotPoint& point : *points) {
        const double reach = points == &series.band ? point.error : 0;
        for (const double y : {point.y - reach, point.y + reach}) {
          if (!axis.shows(y)) continue;
          smallest = std::min(smallest, y);
          largest = std::max(largest, y);
        }
      }
    }
  }
  return smallest <= largest ? std::pair{smallest, largest} : std::pair{1.0, 1.0};
}

Axes axes_of(const Plot& plot) {
  const auto [first, last] = std::minmax_element(plot.x_ticks.begin(), plot.x_ticks.end());
  Axes axes{{*first, *last, false, kLeft, kWidth - kRight},
            {-0.02, 1.02, false, kHeight - kBottom, kTop}};  // a mark at 0 or 1 is seen whole
  if (plot.x == PlotScale::logarithmic) {
    constexpr double kRoom = 0.11;  // beside the first and last mark, in decades
    axes.x = {std::log10(*first) - kRoom, std::log10(*last) + kRoom, true, axes.x.from, axes.x.to};
  }
  const auto [smallest, largest] = range_of(plot);
  if (plot.y == PlotScale::logarithmic) {
    axes.y.logarithmic = true;
    axes.y.low = std::floor(std::log10(smallest) - 0.05);
    axes.y.high = std::ceil(std::log10(largest) + 0.05);
  } else if (plot.y == PlotScale::linear) {
    // From 0, unless that would leave half of the drawing empty.
    const bool is_high = smallest > largest / 2;
    axes.y_ticks = round_ticks(is_high ? smallest : std::min(0.0, smallest), largest);
    axes.y.low = axes.y_ticks.front();
    axes.y.high = axes.y_ticks.back();
  } else {
    axes.y_ticks = {0, 0.25, 0.5, 0.75, 1};
  }
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

// Lengths up to a million do not fit beside each other: 64k.
std::string tick_text(double tick, double largest) {
  constexpr double kKilo = 1024, kMega = kKilo * kKilo, kLong = 9999;
  if (largest <= kLong || std::fmod(tick, kKilo) != 0) return fmt::format("{:g}", tick);
  return tick < kMega ? fmt::format("{:g}k", tick / kKilo) : fmt::format("{:g}M", tick / kMega);
}

std::string grid(const Plot& plot, const Axes& axes) {
  std::string svg;
  if (plot.y == PlotScale::logarithmic) {
    const int low = static_cast<int>(axes.y.low), high = static_cast<int>(axes.y.high);
    const int every = (high - low) / kMaxDecadeLabels + 1;
    for (int e = low; e <= high; e += every) {
      svg += horizontal(axes, std::pow(10, e), decade(e));
    }
  }
  for (const double value : axes.y_ticks) {
    svg += horizontal(axes, value,
                      plot.y == PlotScale::percent ? fmt::format("{:.0f} %", 100 * value)
                                                   : fmt::format("{:g}", value));
  }
  for (const double tick : plot.x_ticks) {
    const double x = axes.x(tick);
    svg += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4}</text>\n",
        x, kHeight - kBottom, kHeight - kBottom + 5, kHeight - kBottom + 19,
        tick_text(tick, *std::max_element(plot.x_ticks.begin(), plot.x_ticks.end())));
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
  const char* outline = style == "c"   ? "l5 9h-10z"
                        : style == "d" ? "l5 5.5l-5 5.5l-5 -5.5z"
                        : style == "e" ? "m5 1.5h-10l5 9z"
                        : style == "f" ? "m-1.5 1h3v3h3v3h-3v3h-3v-3h-3v-3h3z"
                                       : nullptr;
  if (outline != nullptr) {
    return fmt::format("<path d=\"M{:.1f} {:.1f}{}\"/>", x, y - 5.5, outline);
  }
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>", x, y);
}

// Through the points that can be drawn; where one cannot, the line is broken.
std::string line_path(const std::vector<PlotPoint>& points, const Axes& axes) {
  std::string path;
  bool is_down = false;
  for (const PlotPoint& point : points) {
    const bool shown = axes.shows(point);
    if (shown) {
      path += fmt::format("{}{:.1f} {:.1f}", is_down ? "L" : "M", axes.x(point.x), axes.y(point.y));
    }
    is_down = shown;
  }
  return path;
}

// There along the upper edge, and back along the lower one.
std::string band_path(const std::vector<PlotPoint>& points, const Axes& axes) {
  std::string there, back;
  for (const PlotPoint& point : points) {
    const PlotPoint high{point.x, point.y + point.error, 0, {}};
    const PlotPoint low{point.x, point.y - point.error, 0, {}};
    if (!axes.shows(high) || !axes.shows(low)) continue;
    there +=
        fmt::format("{}{:.1f} {:.1f}", there.empty() ? "M" : "L", axes.x(high.x), axes.y(high.y));
    back = fmt::format("L{:.1f} {:.1f}", axes.x(low.x), axes.y(low.y)) + back;
  }
  return there.empty() ? there : there + back + "Z";
}

std::string draw_series(const PlotSeries& series, const Axes& axes) {
  std::string svg = fmt::format("<g class=\"series-{}\">\n", series.style);
  if (const std::string band = band_path(series.band, axes); !band.empty()) {
    svg += fmt::format("<path class=\"band\" d=\"{}\"/>\n", band);
  }
  if (const std::string path = line_path(series.line, axes); !path.empty()) {
    svg += fmt::format("<path class=\"line\" d=\"{}\"/>\n", path);
  }
  for (const PlotPoint& point : series.points) {
    if (!axes.shows(point)) continue;
    const double x = axes.x(point.x), high = axes.y(point.y + point.error);
    const double below = point.y - point.error;
    const double low = axes.y(axes.y.shows(below) ? below : point.y);
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
  for (const char c : shown_text(text)) {  // XML has no control characters and is UTF-8
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

std::vector<double> round_ticks(double low, double high) {
  if (!(high > low)) high = low + 1;
  constexpr double kFewest = 4;
  const double rough = (high - low) / kFewest;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double every = power;
  for (const double digit : {2.0, 5.0}) {
    if (digit * power <= rough) every = digit * power;
  }
  std::vector<double> ticks;
  const double first = std::floor(low / every);
  for (double i = first; (i - 1) * every < high; ++i) ticks.push_back(i * every);
  // The last one is the first that is not below `high`.
  while (ticks.size() > 2 && ticks[ticks.size() - 2] >= high) ticks.pop_back();
  return ticks;
}

std::string to_svg(const Plot& plot, std::optional<PlotSize> size) {
  const Axes axes = axes_of(plot);
  const std::string sized =
      size ? fmt::format("width=\"{}\" height=\"{}\" ", size->width, size->height) : "";
  std::string svg = fmt::format(
      "<svg {5}viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"{2}-title {2}-desc\">\n"
      "<title id=\"{2}-title\">{3}</title>\n<desc id=\"{2}-desc\">{4}</desc>\n",
      kWidth, kHeight, plot.id, escaped(plot.title), escaped(plot.description), sized);
  svg += grid(plot, axes);
  for (const PlotSeries& series : plot.series) svg += draw_series(series, axes);
  return svg + "</svg>\n";
}

}  // namespace qkv::study
