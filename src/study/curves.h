// Curves of training runs: what is drawn of them, and how they are drawn side by side.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "qkv/study.h"
#include "qkv/train.h"
#include "study/svg.h"

namespace qkv::study {

struct CurveColumn {
  const char* key;      // in JSON
  const char* title;    // for people
  const char* caption;  // what it means, in a few words
  double CurvePoint::*member;
  PlotScale scale;
};

inline constexpr std::array kCurveColumns{
    CurveColumn{"loss", "loss", "nats per token", &CurvePoint::loss, PlotScale::linear},
    CurveColumn{"max_logit", "largest logit", "of any head", &CurvePoint::max_logit,
                PlotScale::logarithmic},
    CurveColumn{"entropy", "entropy",
                "share of the largest, mean of the heads: 1 is an average "
                "over all keys, 0 is one key",
                &CurvePoint::entropy, PlotScale::share},
    CurveColumn{"saturation", "saturated rows", "one weight above 0.99, mean of the heads",
                &CurvePoint::saturation, PlotScale::percent},
    CurveColumn{"q_gradient", "gradient at Q", "norm over all heads", &CurvePoint::q_gradient,
                PlotScale::logarithmic},
    CurveColumn{"k_gradient", "gradient at K", "norm over all heads", &CurvePoint::k_gradient,
                PlotScale::logarithmic},
};

// What the heads of a report say together.
CurvePoint point_of(std::int64_t step, double loss, const std::vector<HeadHealth>& health);

// The mean over the runs of a group at each step, with the smallest and largest beside it.
struct SpreadPoint {
  double step = 0, mean = 0, low = 0, high = 0;
};
std::vector<SpreadPoint> spread(const CurveGroup& group, double CurvePoint::*member);

// Steps against a quantity, one line per group in the styles "a", "b", ...
Plot curve_plot(const std::vector<CurveGroup>& groups, const CurveColumn& column);
// A curve in one line of characters, low to high: "▁▂▄▆█"; both ends are given so that lines can be
// compared.
std::string sparkline(const std::vector<double>& values, double low, double high, int width);

}  // namespace qkv::study
