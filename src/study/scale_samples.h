// The raw numbers of the scaling study: one Sample per trial (measured) or per row (expected), and
// their means.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/study.h"

namespace qkv::study {

inline constexpr double kSaturated = 0.99;

// Squares of norms, not norms: their mean over rows has an expectation one can write down.
struct Sample {
  double score_square = 0, max_logit = 0;
  double top_weight = 0, entropy = 0, entropy_relative = 0, saturation = 0;
  double gradient_scores_square = 0, gradient_scores_median = 0;
  double gradient_q_square = 0, gradient_k_square = 0;
};
using Samples = std::vector<Sample>;

// One cell of the study.
struct ScaleCase {
  std::int64_t head_size = 0;
  double input_variance = 1;
  std::vector<double> scales;
};

// Through attention_forward and attention_backward: per scale, one Sample per trial. All scales
// see the same draws. Calls `step` after each of measured_steps(options) parts.
std::vector<Samples> measure(const ScaleStudyOptions& options, const ScaleCase& which,
                             const std::function<void()>& step);
int measured_steps(const ScaleStudyOptions& options, const ScaleCase& which);

// By Monte Carlo in double precision: per scale, one Sample per row. Leaves out score_square,
// max_logit and the median.
std::vector<Samples> expect(const ScaleStudyOptions& options, const ScaleCase& which);

Measured mean_of(const Samples& samples, double Sample::*member);
// The square root of a mean, its standard error by the slope of the root.
Measured root(const Measured& square);

}  // namespace qkv::study
