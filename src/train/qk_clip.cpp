// QK-clip (Kimi K2, 2025): a head whose largest logit passed the limit gets W_Q and W_K that would
// have kept it there. The other heads, and the optimiser's memory, stay as they are.
#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/check.h"
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

std::vector<std::string> clip_scores(const nn::Training& pass, double limit,
                                     const Optimizer& optimizer) {
  const TapePause pause;
  std::vector<std::string> clipped;
  for (const nn::AttentionHealth& h : pass.health) {
    if (h.layer == nullptr || h.layer->config().qk_norm_eps) continue;
    const std::vector<float> logits = h.statistics.max_logit.to_vector<float>();
    const auto heads = static_cast<std::size_t>(h.queries.size(1));
    for (std::size_t head = 0; head < heads; ++head) {
      float largest = logits[head];
      for (std::size_t i = head; i < logits.size(); i += heads) {
        largest = std::max(largest, logits[i]);
      }
      if (!(largest > limit)) continue;
      scale_head(*h.layer, static_cast<std::int64_t>(head), limit / largest, optimizer);
      clipped.push_back(
          fmt::format("{} head {}: clipped from {:.3g} to {:.3g}", h.name, head, largest, limit));
    }
  }
  return clipped;
}

}  // namespace qkv
