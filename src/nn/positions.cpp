#include <cmath>
#include <mutex>
#include <numbers>
#include <numeric>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Llama 3: long waves are slowed by `factor`, short ones kept, those between interpolated.
double llama3_frequency(const RotaryConfig& c, double frequency) {
  const double wave = kTurn / frequency, trained = static_cast<double>(c.original_positions);
  if (wave < trained / c.high_frequency_factor) return frequency;
  if (wave > trained / c.low_frequency_factor) return frequency / c.factor;
  const double smooth = (trained / wave - c.low_frequency_factor) /
                        (c.high_frequency_factor - c.low_frequency_factor);
  return (1 - smooth) * frequency / c.factor + smooth * frequency;
}

// YaRN: the dimension at which a wave turns `rotations` times over the trained length.
double yarn_dimension(const RotaryConfig& c, double rotations) {
  const auto width = static_cast<double>(c.head_size);
  return width * std::log(static_cast<double>(c.original_positions) / (rotations * kTurn)) /
         (2 * std::log(c.base));
}

// How far dimension `i` is slowed down: 0 not at all, 1 by the whole factor.
double yarn_ramp(const RotaryConfig& c, std::int64_t i) {
  double low = yarn_dimension(c, c.beta_fast), high = yarn_dimension(c, c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(c.head_size - 1));
  if (high == low) high += 0.001;
  return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

double yarn_magnitude(const RotaryConfig& c) {
  const auto grown = [&](double mscale) {
    return c.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(c.factor) + 1;
  };
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.mscale == 0 || c.mscale_all_dim == 0) return grown(1);
  return grown(c.mscale) / grown(c.mscale_all_dim);
}

}  // namespace

struct Rotary::Kept {
  std::mutex mutex;
  RotaryTables tables;  // of positions 0, 1, ...
};

Rotary::Rotary(const RotaryConfig& config) : kept_(std::make_shared<Kept>()), config_(config) {
  constexpr std::int64_t kMost = 1 << 16;
  check(config.head_size > 0 && config.head_size % 2 == 0 && config.head_size <= kMost,
        "rotary: the number of turning elements must be even, from 2 to {}, got {}", kMost,
        config.head_size);
  const std::int64_t half = config.head_size / 2;
  double base = config.base;
  const std::string& kind = config.scaling;
  for (std::int64_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_size));
    if (kind == "linear") {
      frequency /= config.factor;
    } else if (kind == "llama3") {
      frequency = llama3_frequency(config, frequency);
    } else if (kind == "yarn") {
      const double ramp = yarn_ramp(config, i);
      frequency = frequency / config.factor * ramp + frequency * (1 - ramp);
    } else {
      check(kind == "default" || kind == "dynamic",
            "rotary: scaling '{}' is not known; there are default, linear, dynamic, llama3, yarn",
            kind);
    }
    frequencies_.push_back(frequency);
  }
  if (kind == "yarn") magnitude_ = yarn_magnitude(config);
}

RotaryTables Rotary::operator()(const Tensor& positions) const {
  const std::vector<std::int64_t> at = to(positions, DType::i64).to_vector<std::int64_t>();
  std::vector<double> frequencies = frequencies_;
  const auto half = static_cast<std::int64_t>(frequencies.size());
  if (config_.scaling == "dynamic") {
    // Beyond the trained length the base grows with the length of what is seen.
    std::int64_t last = -1;
    for (const std::int64_t p : at) last = std::max(last, p);
    const auto trained = static_cast<double>(config_.original_positions);
    const double ratio = std::max((static_cast<double>(last) + 1) / trained, 1.0);
    const auto width = static_cast<double>(config_.head_size);
    const double base =
        config_.base * std::pow(config_.factor * ratio - (config_.factor - 1), width / (width - 2));
    for (std::int64_t i = 0; i < half; ++i) {
      frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / width);
    }
  }
  std::vector<std::int64_t> extents(positions.shape().extents().begin(),
                                    positions.shape().extents().end());
  extents.push_back(half);
  RotaryTables tables{Tensor::empty(Shape(extents)), Tensor::empty(Shape(extents))};
  auto* cos = tables.cos.data<float>();
  auto* sin = tables.sin.data<float>();
  for (std::size_t p = 0; p < at.size(); ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(at[p]) * frequencies[i];
      *cos++ = static_cast<float>(std::cos(angle) * magnitude_);
      *sin++ = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
  return tables;
}

RotaryTables Rotary::operator()(const Tensor& positions, std::int64_t limit) const {
  check<NotRecordable>(
      config_.scaling != "dynamic",
      "rotary: dynamic scaling depends on the length, which only the device knows");
  check(limit >= 0 && limit <= INT32_MAX, "rotary: a limit of {} positions is out of range", limit);
  RotaryTables all;
  {
    const std::scoped_lock lock(kept_->mutex);
    RotaryTables& kept = kept_->tables;
    if (!kept.cos.defined() || kept.cos.size(0) < limit ||
        kept.cos.device() != positions.device()) {
      std::vector<std::int64_t> counted(static_cast<std::size_t>(limit));
      std::iota(counted.begin(), counted.end(), 0);
      const RotaryTables made = (*this)(Tensor::from(counted, {limit}));
      kept = {to(made.cos, positions.device()), to(made.sin, positions.device())};
    }
    all = kept;
  }
  return {embedding(positions, all.cos), embedding(positions, all.sin)};
}

Tensor sinusoidal_positions(std::int64_t positions, std::int64_t width, bool alternating) {
  check(positions >= 0 && width > 0 && width % 2 == 0,
        "sinusoidal_positions: {} positions of even width are needed, got width {}", positions,
        width);
  Tensor table = Tensor::empty({positions, width});
  auto* row = table.data<float>();
  for (std::int64_t p = 0; p < positions; ++p, row += width) {
    for (std::int64_t i = 0; i < width / 2; ++i) {
      const double angle =
          static_cast<double>(p) /
          std::pow(10000.0, 2.0 * static_cast<double>(i) / static_cast<double>(width));
      row[alternating ? 2 * i : i] = static_cast<float>(std::sin(angle));
      row[alternating ? 2 * i + 1 : i + width / 2] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

Tensor alibi_slopes(std::int64_t heads) {
  check(heads > 0, "alibi_slopes: at least one head is needed, got {}", heads);
  // Powers of 2^(-8/n) for the largest power of two n <= heads; the rest are every other slope of
  // 2n.
  check(heads <= 1 << 20, "alibi_slopes: {} heads are too many", heads);
  std::int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<float> slopes;
  for (std::int64_t i = 1; i <= power; ++i) {
    slopes.push_back(static_cast<float>(
        std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(power))));
  }
  for (std::int64_t i = 1; static_cast<std::int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(static_cast<float>(
        std::pow(2.0, -4.0 * static_cast<double>(i) / static_cast<double>(power))));
  }
  return Tensor::from(slopes, {heads});
}

}  // namespace qkv::nn
