// What theory expects, by Monte Carlo.
//
// Given q_i, the scores of row i are independent: a_ij = scale * |q_i| * z_j, where z_j = k_j . q_i
// / |q_i| is normal with variance s^2 and |q_i|^2 is s^2 times chi-squared with d_k degrees of
// freedom. So a row needs one length and n normal numbers, not n vectors of d_k. The gradients are
// averaged over v and dout by hand, both of variance 1: with e_j = dout_i . v_j (variance Dv),
//   ds_j = p_j (e_j - sum_k p_k e_k)         E ds_j^2 = Dv p_j^2 (1 - 2 p_j + P),  P = sum_k p_k^2
//   dq_i = scale sum_j ds_j k_j              along q_i:   Dv scale^2 sum_j p_j^2 (z_j - zbar)^2
//                                            across it:   (d_k - 1) s^2 scale^2 sum_j E ds_j^2
//   dk_j = scale sum_i ds_ij q_i             scale^2 Sq / n |q_i|^2 sum_j E ds_j^2
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/philox.h"
#include "core/threads.h"
#include "study/scale_samples.h"

namespace qkv::study {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

// The rows of a Monte Carlo mean: its error stays below that of the measurement, and its time does
// not grow with n.
std::int64_t expected_rows(std::int64_t keys) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 22) / keys, 512, 16384);
}

class Normal {
 public:
  Normal(std::uint64_t key, std::int64_t row) : key_(key), row_(static_cast<std::uint32_t>(row)) {}

  double operator()() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    // The library's draws use counter words 0 and 1; word 3 keeps these apart from them.
    const auto w = philox_words({next_++, 0, row_, 1}, key_);
    const double u = (w[0] + 0.5) * 0x1p-32, angle = 2 * std::numbers::pi * (w[1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::uint64_t key_;
  std::uint32_t row_, next_ = 0;
  double spare_ = 0;
  bool has_spare_ = false;
};

struct Row {
  double length = 0;      // |q_i|
  std::vector<double> z;  // k_j along q_i
};

Row draw(const ScaleCase& which, std::int64_t keys, Normal normal) {
  const double s = std::sqrt(which.input_variance);
  double square = 0;
  for (std::int64_t i = 0; i < which.head_size; ++i) {
    const double x = normal();
    square += x * x;
  }
  Row row;
  row.length = s * std::sqrt(square);
  row.z.resize(static_cast<std::size_t>(keys));
  for (double& z : row.z) z = s * normal();
  return row;
}

Sample evaluate(const Row& row, double scale, const ScaleStudyOptions& options,
                const ScaleCase& which) {
  const double factor = scale * row.length;
  const double top = factor * *std::max_element(row.z.begin(), row.z.end());
  std::vector<double> p(row.z.size());
  double sum = 0;
  for (std::size_t j = 0; j < p.size(); ++j) sum += p[j] = std::exp(factor * row.z[j] - top);
  const double lse = top + std::log(sum);
  double squares = 0, zbar = 0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    p[j] /= sum;
    squares += p[j] * p[j];
    zbar += p[j] * row.z[j];
  }
  double ds = 0, along = 0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    const double square = p[j] * p[j], z = row.z[j] - zbar;
    ds += square * (1 - 2 * p[j] + squares);
    along += square * z * z;
  }
  const auto dv = static_cast<double>(options.value_size), n = static_cast<double>(p.size());
  const double across = static_cast<double>(which.head_size - 1) * which.input_variance * ds;
  Sample sample;
  sample.top_weight = 1 / sum;
  sample.entropy = lse - factor * zbar;
  sample.entropy_relative = sample.entropy / std::log(n);
  sample.saturation = sample.top_weight > kSaturated ? 1 : 0;
  sample.gradient_scores_square = dv * ds;
  sample.gradient_q_square = dv * scale * scale * (along + across);
  sample.gradient_k_square =
      dv * scale * scale * row.length * row.length * ds * static_cast<double>(options.queries) / n;
  return sample;
}

}  // namespace

std::vector<Samples> expect(const ScaleStudyOptions& options, const ScaleCase& which) {
  const std::int64_t rows = expected_rows(options.keys);
  const std::uint64_t key = options.seed + (static_cast<std::uint64_t>(which.head_size) << 32);
  std::vector<Samples> samples(which.scales.size(), Samples(static_cast<std::size_t>(rows)));
  parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task) {
    for (std::int64_t r = task * kRowsPerTask; r < std::min(rows, (task + 1) * kRowsPerTask); ++r) {
      const Row row = draw(which, options.keys, Normal(key, r));
      for (std::size_t i = 0; i < which.scales.size(); ++i) {
        samples[i][static_cast<std::size_t>(r)] = evaluate(row, which.scales[i], options, which);
      }
    }
  });
  return samples;
}

}  // namespace qkv::study
