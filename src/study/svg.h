// Small line plots as inline SVG: measured points with error bars over expected lines, and curves.
// Colours come
// from the page's style sheet by class, so that one drawing serves a light and a dark page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qkv::study {

enum class PlotScale : std::uint8_t { linear, logarithmic, share, percent };  // share: 0 to 1

struct PlotPoint {
  double x = 0, y = 0;
  double error = 0;   // half the length of its bar
  std::string label;  // shown when pointed at, and read aloud
};

struct PlotSeries {
  std::string style;  // CSS class, and the shape of the mark: see kStyles
  std::vector<PlotPoint> points;
  std::vector<PlotPoint> line;  // the expectation, or the curve; empty = none
  std::vector<PlotPoint> band;  // around the curve: y - error to y + error; empty = none
};

// Series are told apart by colour and by shape.
struct PlotStyle {
  const char* style;
  const char* shape;  // as a character, for legends
};
inline constexpr PlotStyle kStyles[] = {{"a", "●"}, {"b", "■"}, {"c", "▲"},
                                        {"d", "◆"}, {"e", "▼"}, {"f", "✚"}};

struct Plot {
  std::string id;  // unique in the page
  std::string title, description;
  std::string x_label, y_label;
  std::vector<double> x_ticks;  // what the x axis covers, at least
  PlotScale x = PlotScale::logarithmic, y = PlotScale::share;
  std::vector<PlotSeries> series;
};

// With a size it can stand in another drawing; without, a page gives it one.
struct PlotSize {
  double width, height;
};
std::string to_svg(const Plot& plot, std::optional<PlotSize> size = {});
// Round numbers that cover [low, high], four to seven of them.
std::vector<double> round_ticks(double low, double high);
// Text made safe for HTML and SVG, attributes included.
std::string escaped(const std::string& text);

}  // namespace qkv::study
