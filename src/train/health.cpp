#include "train/health.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

using Values = std::vector<float>;

// [B, H] to H figures: over the batch, by `combine`.
template <class Combine>
Values over_batch(const Tensor& x, Combine&& combine) {
  const Values all = to(x, DType::f32).to_vector<float>();
  const auto heads = static_cast<std::size_t>(x.size(1));
  Values result(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(heads));
  for (std::size_t i = heads; i < all.size(); ++i) {
    result[i % heads] = combine(result[i % heads], all[i]);
  }
  return result;
}

// NaN stays: std::max would drop it on one side.
float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

Values means(const Tensor& x) {
  Values sums = over_batch(x, [](float a, float b) { return a + b; });
  for (float& sum : sums) sum /= static_cast<float>(x.size(0));
  return sums;
}

// The norm of each head of [B, H, S, D]; zeros where there is no gradient.
Values norms(const Tensor& gradient, std::int64_t heads) {
  Values result(static_cast<std::size_t>(heads), 0);
  if (!gradient.defined()) return result;
  const Tensor wide = to(gradient, DType::f32);
  const Values squares = sum(mul(wide, wide), {0, 2, 3}).to_vector<float>();
  const auto share = static_cast<std::size_t>(heads) / squares.size();  // query heads to a key head
  for (std::size_t h = 0; h < result.size(); ++h) result[h] = std::sqrt(squares[h / share]);
  return result;
}

}  // namespace

void watch_scores(Tape& tape, const nn::Training& pass) {
  for (const nn::AttentionHealth& h : pass.health) {
    tape.watch(h.queries);
    tape.watch(h.keys);
  }
}

std::vector<HeadHealth> head_health(const nn::Training& pass, const Gradients& gradients) {
  const TapePause pause;
  std::vector<HeadHealth> all;
  for (const nn::AttentionHealth& h : pass.health) {
    const std::int64_t heads = h.queries.size(1);
    const AttentionStatistics& s = h.statistics;
    const Values logits = over_batch(s.max_logit, larger), variances = means(s.score_var);
    const Values entropies = means(s.entropy_relative), saturations = means(s.saturation);
    const Values q = norms(gradients[h.queries], heads), k = norms(gradients[h.keys], heads);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      all.push_back({.name = h.name,
                     .head = static_cast<int>(i),
                     .max_logit = logits[i],
                     .variance = variances[i],
                     .entropy = entropies[i],
                     .saturation = saturations[i],
                     .q_grad_norm = q[i],
                     .k_grad_norm = k[i]});
    }
  }
  return all;
}

std::vector<std::string> warnings_of(const std::vector<HeadHealth>& health,
                                     const WatchOptions& watch, std::vector<double>& warned) {
  std::vector<std::string> warnings;
  if (warned.size() != health.size()) {
    warned.clear();
    for (const HeadHealth& h : health) warned.push_back(std::max(h.max_logit, 1.0));
  }
  for (std::size_t i = 0; i < health.size(); ++i) {
    const HeadHealth& h = health[i];
    const std::string who = fmt::format("{} head {}", h.name, h.head);
    if (watch.growth > 0 && h.max_logit > watch.growth * warned[i]) {
      warnings.push_back(fmt::format("{}: the largest logit grew from {:.3g} to {:.3g}", who,
                                     warned[i], h.max_logit));
      warned[i] = h.max_logit;
    } else if (watch.max_logit > 0 && h.max_logit > watch.max_logit) {
      warnings.push_back(fmt::format("{}: the largest logit is {:.3g}", who, h.max_logit));
    }
    if (watch.min_entropy > 0 && h.entropy < watch.min_entropy) {
      warnings.push_back(
          fmt::format("{}: entropy collapsed to {:.2g} of its largest, {:.0f} % of "
                      "rows look at one key",
                      who, h.entropy, 100 * h.saturation));
    }
  }
  return warnings;
}

}  // namespace qkv
