#include "train/health.h"

#include <algorithm>

#include "core/check.h"
#include "ops/head_figures.h"
#include "qkv/ops.h"

namespace qkv {

HeadFigures over_batch(const Tensor& statistic, HeadFigure figure) {
  return {reshape(statistic, {statistic.size(0), statistic.size(1), 1, 1}), figure};
}

void watch_scores(Tape& tape, const nn::Training& pass) {
  for (const nn::AttentionHealth& h : pass.health) {
    tape.watch(h.queries);
    tape.watch(h.keys);
  }
}

ScoreHealth::ScoreHealth(const nn::Training& pass, const Gradients& gradients) {
  const TapePause pause;
  std::vector<HeadFigures> items;
  for (const nn::AttentionHealth& h : pass.health) {
    const AttentionStatistics& s = h.statistics;
    items.push_back(over_batch(s.max_logit, HeadFigure::largest));
    for (const Tensor* x : {&s.score_var, &s.entropy_relative, &s.saturation}) {
      items.push_back(over_batch(*x, HeadFigure::mean));
    }
    Layer layer{.name = h.name, .heads = h.queries.size(1)};
    const auto add_norm = [&](const Tensor& of) {
      const Tensor gradient = gradients[of];
      if (!gradient.defined()) return std::int64_t{0};
      items.push_back({gradient, HeadFigure::norm});
      return gradient.size(1);
    };
    layer.query_norms = add_norm(h.queries);
    layer.key_norms = add_norm(h.keys);
    layers_.push_back(std::move(layer));
  }
  if (items.empty()) return;
  const Tensor figures = head_figures(items);
  figures_ = backend(figures.device()).begin_reading(figures);
}

std::vector<HeadHealth> ScoreHealth::read() const {
  std::vector<HeadHealth> all;
  if (layers_.empty()) return all;
  const std::vector<float> values = figures_->wait().to_vector<float>();
  auto next = values.begin();
  for (const Layer& layer : layers_) {
    // Of every query head, from as many figures or from those of fewer key heads; none: 0.
    const auto put = [&](double HeadHealth::*figure, std::int64_t count, HeadHealth* to) {
      for (std::int64_t h = 0; count > 0 && h < layer.heads; ++h) {
        to[h].*figure = next[h / (layer.heads / count)];
      }
      next += count;
    };
    const std::size_t first = all.size();
    for (std::int64_t h = 0; h < layer.heads; ++h) {
      all.push_back({.name = layer.name, .head = static_cast<int>(h)});
    }
    HeadHealth* heads = all.data() + first;
    put(&HeadHealth::max_logit, layer.heads, heads);
    put(&HeadHealth::variance, layer.heads, heads);
    put(&HeadHealth::entropy, layer.heads, heads);
    put(&HeadHealth::saturation, layer.heads, heads);
    put(&HeadHealth::q_grad_norm, layer.query_norms, heads);
    put(&HeadHealth::k_grad_norm, layer.key_norms, heads);
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
