#include <algorithm>
#include <cmath>

#include "core/order.h"
#include "qkv/attention.h"
#include "qkv/random.h"
#include "study/scale_samples.h"

namespace qkv::study {
namespace {

// Trials lie along the batch axis of one call, as many as keep the score gradients below 64 MB.
constexpr std::int64_t kMaxPairs = 1 << 24;

std::int64_t trials_per_call(const ScaleStudyOptions& options) {
  const std::int64_t pairs = options.queries * options.keys;
  return std::clamp<std::int64_t>(kMaxPairs / pairs, 1, std::min<std::int64_t>(8, options.trials));
}

// A stream of its own for each head size and input variance: adding one to a study leaves the
// numbers of the others alone.
std::uint64_t stream(const ScaleStudyOptions& options, const ScaleCase& which) {
  const auto variance = static_cast<std::uint64_t>(std::llround(which.input_variance * 1e6));
  return (options.seed * 0x9E3779B97F4A7C15u) ^
         (static_cast<std::uint64_t>(which.head_size) << 40) ^ variance;
}

// mean over the rows of trial t of |row|^2; x is [trials, 1, rows, columns].
double mean_square_norm(const Tensor& x, std::int64_t t) {
  const float* data = x.data<float>() + t * x.stride(0);
  double sum = 0;
  for (std::int64_t i = 0; i < x.stride(0); ++i) sum += double{data[i]} * data[i];
  return sum / static_cast<double>(x.size(2));
}

double median_norm(const Tensor& x, std::int64_t t) {
  std::vector<double> norms(static_cast<std::size_t>(x.size(2)));
  const float* data = x.data<float>() + t * x.stride(0);
  for (double& norm : norms) {
    double sum = 0;
    for (std::int64_t j = 0; j < x.size(3); ++j, ++data) sum += double{*data} * *data;
    norm = std::sqrt(sum);
  }
  const auto middle = norms.begin() + static_cast<std::ptrdiff_t>(norms.size() / 2);
  std::nth_element(norms.begin(), middle, norms.end(), is_smaller<double>);
  return *middle;
}

double mean_of_rows(const Tensor& x, std::int64_t t) {
  const float* data = x.data<float>() + t * x.stride(0);
  double sum = 0;
  for (std::int64_t i = 0; i < x.stride(0); ++i) sum += data[i];
  return sum / static_cast<double>(x.stride(0));
}

Sample sample_of(const AttentionStatistics& s, const AttentionGrads& grads, std::int64_t t) {
  const auto value = [t](const Tensor& x) { return double{x.data<float>()[t]}; };
  Sample sample;
  // The mean of a score is known to be 0, so its variance is its mean square; the variance around
  // the sample's own mean would be a little too small.
  sample.score_square = value(s.score_var) + value(s.score_mean) * value(s.score_mean);
  sample.max_logit = value(s.max_logit);
  sample.top_weight = mean_of_rows(s.top_weight, t);
  sample.entropy = value(s.entropy_mean);
  sample.entropy_relative = value(s.entropy_relative);
  sample.saturation = value(s.saturation);
  sample.gradient_scores_square = mean_square_norm(grads.dbias, t);
  sample.gradient_scores_median = median_norm(grads.dbias, t);
  sample.gradient_q_square = mean_square_norm(grads.dq, t);
  sample.gradient_k_square = mean_square_norm(grads.dk, t);
  return sample;
}

}  // namespace

int measured_steps(const ScaleStudyOptions& options, const ScaleCase& which) {
  const std::int64_t size = trials_per_call(options);
  const std::int64_t calls = (options.trials + size - 1) / size;
  return static_cast<int>(calls * static_cast<std::int64_t>(which.scales.size()));
}

std::vector<Samples> measure(const ScaleStudyOptions& options, const ScaleCase& which,
                             const std::function<void()>& step) {
  const auto deviation = static_cast<float>(std::sqrt(which.input_variance));
  Generator generator(stream(options, which));
  std::vector<Samples> samples(which.scales.size());
  for (std::int64_t done = 0; done < options.trials;) {
    const std::int64_t count = std::min(trials_per_call(options), options.trials - done);
    const std::int64_t d = which.head_size, dv = options.value_size;
    const Tensor q = generator.normal({count, 1, options.queries, d}, 0, deviation);
    const Tensor k = generator.normal({count, 1, options.keys, d}, 0, deviation);
    const Tensor v = generator.normal({count, 1, options.keys, dv});
    const Tensor dout = generator.normal({count, 1, options.queries, dv});
    for (std::size_t i = 0; i < which.scales.size(); ++i) {
      AttentionOptions attention;
      attention.scale = static_cast<float>(which.scales[i]);
      attention.statistics = Statistics::all;
      // A bias of zeros changes nothing, and its gradient is the gradient of the scores.
      attention.bias = Bias::tensor(Tensor::zeros({count, 1, options.queries, options.keys}));
      const AttentionForward forward = attention_forward(q, k, v, attention);
      const AttentionGrads grads = attention_backward(dout, q, k, v, forward, attention);
      for (std::int64_t t = 0; t < count; ++t) {
        samples[i].push_back(sample_of(forward.statistics, grads, t));
      }
      step();
    }
    done += count;
  }
  return samples;
}

Measured mean_of(const Samples& samples, double Sample::*member) {
  double mean = 0, squares = 0, n = 0;
  for (const Sample& sample : samples) {  // Welford
    const double x = sample.*member, before = x - mean;
    mean += before / ++n;
    squares += before * (x - mean);
  }
  return {mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : 0};
}

Measured root(const Measured& square) {
  const double mean = std::sqrt(std::max(0.0, square.mean));
  return {mean, mean > 0 ? square.standard_error / (2 * mean) : 0};
}

}  // namespace qkv::study
