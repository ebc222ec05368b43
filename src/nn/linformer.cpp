#include "core/check.h"
#include "nn/attend.h"
#include "nn/trace_weights.h"
#include "nn/visible_keys.h"
#include "qkv/autograd.h"
#include "qkv/long_attention.h"

namespace qkv::nn {

LinformerSharing linformer_sharing_from_string(const std::string& name) {
  if (name == "none") return LinformerSharing::none;
  if (name == "headwise") return LinformerSharing::heads;
  if (name == "key-value") return LinformerSharing::key_value;
  if (name == "layerwise") return LinformerSharing::layers;
  fail("linformer: sharing '{}' is none of none, headwise, key-value and layerwise", name);
}

LinformerProjection::LinformerProjection(const LinformerConfig& config, std::int64_t key_heads)
    : shape_(config.sharing == LinformerSharing::none
                 ? Shape{key_heads, config.length, config.max_length}
                 : Shape{config.length, config.max_length}),
      shares_(config.sharing == LinformerSharing::key_value ||
              config.sharing == LinformerSharing::layers) {}

void LinformerProjection::visit(const Visitor& visitor) {
  visitor("keys", keys, shape_);
  if (!shares_) visitor("values", values, shape_);
}

Tensor LinformerProjection::for_keys(std::int64_t length) const {
  check(keys.defined(), "linformer: the projection has no values; load or initialize it");
  return slice(keys, -1, 0, length);
}

Tensor LinformerProjection::for_values(std::int64_t length) const {
  return shares_ ? for_keys(length) : slice(values, -1, 0, length);
}

LinformerAttention::LinformerAttention(const AttentionConfig& given,
                                       const LinformerConfig& linformer,
                                       std::shared_ptr<LinformerProjection> shared)
    : ProjectedAttention(given),
      linformer_(linformer),
      projection_(std::move(shared)),
      owns_(!projection_) {
  check(
      !given.causal,
      "linformer: causal attention is not possible: each projected key mixes all positions, those "
      "to come included; use exact, longformer or performer attention");
  check(!given.cross && given.window == 0, "linformer: it is for self-attention without a window");
  check(linformer.length > 0 && linformer.max_length > 0,
        "linformer: length {} and max_length {} must be positive", linformer.length,
        linformer.max_length);
  if (owns_) projection_ = std::make_shared<LinformerProjection>(linformer, config().kv_heads);
}

void LinformerAttention::visit(const Visitor& visitor) {
  ProjectedAttention::visit(visitor);
  if (owns_) visitor("linformer", *projection_);
}

Tensor LinformerAttention::operator()(const Tensor& x, const AttentionCall& call) const {
  const std::int64_t length = x.size(1);
  check(length <= linformer_.max_length,
        "linformer: {} positions are more than the {} that the projections were made for; truncate "
        "the input",
        length, linformer_.max_length);
  check(call.cache == nullptr, "linformer: it has no use for a cache");
  check(!call.bias.defined(),
        "linformer: a bias by position has no place, since projected keys have none; use exact or "
        "longformer attention");
  auto [queries, keys, values] = project(x, call);
  const Tensor visible = visible_keys("linformer", call.mask, {x.size(0), length}, x.device());
  if (visible.defined()) {
    keys = mul(keys, visible);
    values = mul(values, visible);
  }
  // [k, S] times [B, H, S, D]: the product is in the dtype of what is attended to.
  const auto shorten = [&](const Tensor& projection, const Tensor& rows) {
    return matmul(to(projection, rows.dtype()), rows);
  };
  const Tensor e = projection_->for_keys(length);
  const Tensor short_keys = shorten(e, keys);
  const Tensor short_values = shorten(projection_->for_values(length), values);
  AttentionOptions options;
  options.scale = config().scale;
  options.softcap = config().softcap;
  if (call.trace != nullptr && (call.trace->attentions || call.trace->on_attention)) {
    // What reaches a position through the projection of values: it may be negative.
    const TapePause pause;
    AttentionOptions like = options;
    like.mask = call.mask;
    trace_weights(call, {queries, keys, values}, like,
                  matmul(attention_weights(queries, short_keys, options),
                         to(projection_->for_values(length), DType::f32)));
  }
  AttentionCall told = call;  // of all keys, above
  told.trace = nullptr;
  const Tensor attended = attend({queries, short_keys, short_values}, options,
                                 {.dropout = config().dropout, .layer = this}, told);
  return finish(attended, x.dtype());
}

}  // namespace qkv::nn
