#include "train/health.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

using Values = std::vector<float>;

// What many tensors hold, in one copy: each copy from a device waits until it is idle.
class Download {
 public:
  void add(const Tensor& x) { parts_.push_back(reshape(to(x, DType::f32), {x.numel()})); }
  void fetch() {
    if (!parts_.empty()) values_ = concat(parts_, 0).to_vector<float>();
    next_ = values_.begin();
  }
  // In the order they were added.
  Values take(std::int64_t count) {
    const Values part(next_, next_ + count);
    next_ += count;
    return part;
  }

 private:
  std::vector<Tensor> parts_;
  Values values_;
  Values::const_iterator next_;
};

// Figures [B, H] of every head: over the batch, by `combine`.
template <class Combine>
Values over_batch(const Values& all, std::size_t heads, Combine&& combine) {
  Values result(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(heads));
  for (std::size_t i = heads; i < all.size(); ++i) {
    result[i % heads] = combine(result[i % heads], all[i]);
  }
  return result;
}

// NaN stays: std::max would drop it on one side.
float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

Values means(const Values& all, std::size_t heads) {
  Values sums = over_batch(all, heads, [](float a, float b) { return a + b; });
  for (float& sum : sums) sum /= static_cast<float>(all.size() / heads);
  return sums;
}

// The sum of squares of each head of [B, H, S, D]; undefined where there is no gradient.
Tensor squares_of(const Tensor& gradient) {
  if (!gradient.defined()) return {};
  const Tensor wide = to(gradient, DType::f32);
  return sum(sum(mul(wide, wide), {2, 3}), {0});  // along memory, then the little that is left
}

// Of every query head, from squares of as many heads or of fewer key heads; none: zeros.
Values norms(const Values& squares, std::size_t heads) {
  Values result(heads, 0);
  if (squares.empty()) return result;
  const std::size_t share = heads / squares.size();
  for (std::size_t h = 0; h < heads; ++h) result[h] = std::sqrt(squares[h / share]);
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
  Download figures;
  std::vector<std::int64_t> counts;  // of each tensor that is fetched, in order; 0: there is none
  for (const nn::AttentionHealth& h : pass.health) {
    const AttentionStatistics& s = h.statistics;
    for (const Tensor& x : {s.max_logit, s.score_var, s.entropy_relative, s.saturation,
                            squares_of(gradients[h.queries]), squares_of(gradients[h.keys])}) {
      counts.push_back(x.defined() ? x.numel() : 0);
      if (x.defined()) figures.add(x);
    }
  }
  figures.fetch();
  auto count = counts.begin();
  const auto next = [&] { return figures.take(*count++); };
  std::vector<HeadHealth> all;
  for (const nn::AttentionHealth& h : pass.health) {
    const auto heads = static_cast<std::size_t>(h.queries.size(1));
    const Values logits = over_batch(next(), heads, larger), variances = means(next(), heads);
    const Values entropies = means(next(), heads), saturations = means(next(), heads);
    const Values q = norms(next(), heads), k = norms(next(), heads);
    for (std::size_t i = 0; i < heads; ++i) {
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
