// Small line plots as inline SVG: measured points with error bars over expected lines. Colours come
// from the page's style sheet by class, so that one drawing serves a light and a dark page.
#pragma once

#include <string>
#include <vector>

namespace qkv::study {

struct PlotPoint {
  double x = 0, y = 0;
  double error = 0;   // half the length of its bar
  std::string label;  // shown when pointed at, and read aloud
};

struct PlotSeries {
  std::string style;  // CSS class, and the shape of the mark: "a" circle, "b" square, "c" triangle
  std::vector<PlotPoint> points;
  std::vector<PlotPoint> line;  // the expectation; empty = none
};

struct Plot {
  std::string id;  // unique in the page
  std::string title, description;
  std::string x_label, y_label;
  std::vector<double> x_ticks;  // the x axis is logarithmic
  bool log_y = false;           // else from 0 to 1
  bool percent = false;
  std::vector<PlotSeries> series;
};

std::string to_svg(const Plot& plot);
// Text made safe for HTML and SVG, attributes included.
std::string escaped(const std::string& text);

}  // namespace qkv::study
