// QK-clip (Kimi K2, 2025): a head whose largest logit passed the limit gets W_Q and W_K that would
// have kept it there. The other heads, and the optimiser's memory, stay as they are.
#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/check.h"
#include "ops/head_figures.h"
#include "qkv/ops.h"
#include "train/health.h"

namespace qkv {
namespace {

// Columns or rows [first, first + count) of a weight, or of its bias.
struct Part {
  const Tensor* parameter;
  int axis;
  std::int64_t first, count;
};

void scale_part(const Part& part, double factor, const Optimizer& optimizer) {
  if (!part.parameter->defined()) return;
  const auto& parameters = optimizer.parameters();
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const Tensor& p) { return p.id() == part.parameter->id(); });
  if (found == parameters.end()) return;
  const OptimizerState& state =
      optimizer.state()[static_cast<std::size_t>(found - parameters.begin())];
  const auto cut = [&](const Tensor& x) {
    return slice(x, part.axis, part.first, part.first + part.count);
  };
  Backend& device = backend(found->device());
  Tensor parameter = cut(*found);
  if (!state.master.defined()) return device.scale(parameter, factor, parameter);
  Tensor master = cut(state.master);
  device.scale(master, factor, master);
  device.copy(master, parameter);
}

void scale_head(const nn::ProjectedAttention& layer, std::int64_t head, double factor,
                const Optimizer& optimizer) {
  const nn::AttentionConfig& c = layer.config();
  const std::int64_t size = c.head_size;
  if (c.fused) {  // q, k, v side by side: [hidden, 3 hidden]
    for (const std::int64_t first : {head * size, c.hidden + head * size}) {
      scale_part({&layer.q.weight, 1, first, size}, std::sqrt(factor), optimizer);
      scale_part({&layer.q.bias, 0, first, size}, std::sqrt(factor), optimizer);
    }
    return;
  }
  // A key head that several query heads share is left to the others.
  const bool own_keys = c.kv_heads == c.heads;
  const double share = own_keys ? std::sqrt(factor) : factor;
  for (const nn::Linear* projection : {&layer.q, &layer.k}) {
    if (projection == &layer.k && !own_keys) continue;
    scale_part({&projection->weight, 0, head * size, size}, share, optimizer);
    scale_part({&projection->bias, 0, head * size, size}, share, optimizer);
  }
}

}  // namespace

ScoreClip::ScoreClip(const nn::Training& pass) {
  const TapePause pause;
  std::vector<HeadFigures> items;
  for (const nn::AttentionHealth& h : pass.health) {
    if (h.layer == nullptr || h.layer->config().qk_norm_eps) continue;
    layers_.push_back({h.name, h.layer, h.queries.size(1)});
    items.push_back(over_batch(h.statistics.max_logit, HeadFigure::largest));
  }
  if (items.empty()) return;
  const Tensor largest = head_figures(items);
  largest_ = backend(largest.device()).begin_reading(largest);
}

std::vector<std::string> ScoreClip::apply(double limit, const Optimizer& optimizer) const {
  const TapePause pause;
  std::vector<std::string> clipped;
  if (layers_.empty()) return clipped;
  const std::vector<float> values = largest_->wait().to_vector<float>();
  auto value = values.begin();
  for (const Layer& of : layers_) {
    for (std::int64_t head = 0; head < of.heads; ++head) {
      const float logit = *value++;
      if (!(logit > limit)) continue;
      scale_head(*of.layer, head, limit / logit, optimizer);
      clipped.push_back(
          fmt::format("{} head {}: clipped from {:.3g} to {:.3g}", of.name, head, logit, limit));
    }
  }
  return clipped;
}

}  // namespace qkv
