// Experiments on the library's own statistics and gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace qkv {

// Why 1/sqrt(d_k)? For each head size and scale: what the scores, the weights and the gradients
// look like when q and k are random with variance `input_variance`.
struct ScaleStudyOptions {
  std::vector<std::int64_t> head_sizes{16, 32, 64, 128, 256, 512, 1024};
  std::int64_t keys = 256;     // n
  std::int64_t queries = 256;  // rows per trial
  std::int64_t trials = 16;    // independent draws; standard errors come from their spread
  float input_variance = 1;    // s^2 of the entries of q and k
  std::uint64_t seed = 1;
  std::function<void(int done, int total)> progress{};
};

// Over the trials: the mean and its standard error.
struct Measured {
  double mean = 0, standard_error = 0;
};

struct ScaleStudyRow {
  std::int64_t head_size = 0;
  std::string scale_name;      // "none", "1/sqrt(d_k)", "1/d_k"
  double scale = 0;
  Measured score_variance;
  double expected_variance = 0;  // scale^2 * d_k * s^4
  Measured score_magnitude;      // root mean square of a score
  Measured max_logit, top_weight, entropy, entropy_relative, saturation;
  double expected_entropy = 0;   // for Gaussian scores of the expected variance, by quadrature-free
                                 // Monte Carlo in double precision
  Measured gradient_q, gradient_k;  // norm of d loss / d q and d k for a unit-variance d loss / d out
};

struct ScaleStudy {
  ScaleStudyOptions options;
  std::vector<ScaleStudyRow> rows;
};

ScaleStudy study_scale(const ScaleStudyOptions& options = {});
std::string to_json(const ScaleStudy& study);
// A self-contained page: tables and SVG plots, no network.
std::string to_html(const ScaleStudy& study);

}  // namespace qkv
