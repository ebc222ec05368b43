#include <mutex>

#include "core/check.h"
#include "core/philox.h"
#include "nn/trace_weights.h"
#include "nn/visible_keys.h"
#include "qkv/autograd.h"
#include "qkv/long_attention.h"

namespace qkv::nn {

struct PerformerAttention::Drawn {
  std::mutex mutex;
  std::int64_t draw = -1;
  Tensor directions;
};

PerformerAttention::PerformerAttention(const AttentionConfig& config,
                                       const PerformerConfig& performer, std::int64_t layer)
    : ProjectedAttention(config),
      performer_(performer),
      layer_(layer),
      drawn_(std::make_shared<Drawn>()) {
  check(performer.features > 0, "performer: features must be positive, got {}", performer.features);
  check(config.softcap == 0 && config.window == 0,
        "performer: a softcap or a window needs the scores, which a Performer never has");
  check(!config.cross, "performer: cross-attention is exact only");
}

Tensor PerformerAttention::directions(std::int64_t draw, Device device) const {
  const std::scoped_lock lock(drawn_->mutex);
  if (drawn_->draw != draw || drawn_->directions.device() != device) {
    const TapePause pause;
    const auto words =
        philox_words({static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(layer_), 0, 7},
                     performer_.seed);
    const std::uint64_t seed = words[0] | static_cast<std::uint64_t>(words[1]) << 32;
    drawn_->directions =
        to(orthogonal_directions(performer_.features, config().head_size, seed), device);
    drawn_->draw = draw;
  }
  return drawn_->directions;
}

Tensor PerformerAttention::operator()(const Tensor& x, const AttentionCall& call) const {
  check(!call.bias.defined(),
        "performer: a bias is added to scores, which a Performer never has; use exact or "
        "longformer attention");
  const Heads heads = project(x, call);
  const bool redraws = call.training != nullptr && performer_.redraw > 0;
  const Tensor drawn =
      directions(redraws ? call.training->step / performer_.redraw : 0, x.device());
  const FeatureOptions options{
      .kind = performer_.kind,
      .scale = config().scale,
      .visible = visible_keys("performer", call.mask, {x.size(0), x.size(1)}, x.device())};
  const bool looks = call.trace != nullptr && (call.trace->attentions || call.trace->on_attention);
  if (call.cache == nullptr && !looks) {
    return finish(performer_attention(heads.queries, heads.keys, heads.values, drawn, options,
                                      config().causal),
                  x.dtype());
  }
  const Tensor queries = query_features(heads.queries, drawn, options);
  const auto look = [&](const Tensor& keys) {
    if (!looks) return;
    AttentionOptions like{.scale = config().scale, .mask = call.mask};
    if (config().causal) like.mask = like.mask & Mask::causal();
    trace_weights(call, {heads.queries, heads.keys, heads.values}, like,
                  linear_attention_weights(queries, keys, config().causal));
  };
  if (call.cache == nullptr) {
    const Tensor keys = key_features(heads.keys, drawn, options).features;
    look(keys);
    return finish(linear_attention(queries, keys, heads.values, config().causal), x.dtype());
  }
  check(config().causal, "performer: a cache is for causal attention");
  LinearState& state = call.cache->sums(call.layer, x.size(1));
  if (!state.sums.defined()) state.top = {};
  const KeyFeatures keys = key_features(heads.keys, drawn, options, state.top);
  if (!state.sums.defined()) look(keys.features);  // later keys are sums by then
  const Tensor attended = linear_attention(queries, keys.features, heads.values, keys.decay, state);
  state.top = keys.top;
  return finish(attended, x.dtype());
}

}  // namespace qkv::nn
