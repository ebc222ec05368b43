#include <array>
#include <mutex>

#include "core/check.h"
#include "nn/attend.h"
#include "nn/heads.h"
#include "nn/pack.h"
#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/nn.h"

namespace qkv::nn {
// The packed weight of q, k and v together, kept as nn::Linear keeps its own.
struct ProjectedAttention::Joint {
  std::mutex mutex;
  std::array<std::uint64_t, 3> ids{};  // of the weights that were packed
  PackedWeight weight;
  Tensor bias;
};

namespace {

// Whether two weights can be rows of one.
bool are_alike(const Weight& a, const Weight& b) {
  return a.dtype() == b.dtype() && a.spread == b.spread && a.scale.defined() == b.scale.defined() &&
         (!a.scale.defined() || a.scale.size(1) == b.scale.size(1));
}

}  // namespace

ProjectedAttention::ProjectedAttention(const AttentionConfig& config)
    : config_(config), joint_(std::make_shared<Joint>()) {
  AttentionConfig& c = config_;
  check(c.heads > 0 && c.hidden > 0, "attention: hidden {} and heads {} must be positive", c.hidden,
        c.heads);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_size == 0) {
    check(c.hidden % c.heads == 0, "attention: hidden size {} is not a multiple of {} heads",
          c.hidden, c.heads);
    c.head_size = c.hidden / c.heads;
  }
  check(c.kv_heads > 0 && c.heads % c.kv_heads == 0,
        "attention: {} heads are not a multiple of {} key heads", c.heads, c.kv_heads);
  check(c.head_size > 0, "attention: the head size must be positive, got {}", c.head_size);
  for (const Shape& widest : {Shape{c.heads, c.head_size}, Shape{3, c.hidden}}) {
    static_cast<void>(widest);  // a Shape refuses what overflows
  }
  const std::int64_t memory = c.memory_hidden > 0 ? c.memory_hidden : c.hidden;
  if (c.fused) {
    q = Linear({c.hidden, 3 * c.hidden, c.bias, true});
    out = Linear({c.hidden, c.hidden, c.out_bias, true});
  } else {
    q = Linear({c.hidden, c.heads * c.head_size, c.bias});
    k = Linear({memory, c.kv_heads * c.head_size, c.bias});
    v = Linear({memory, c.kv_heads * c.head_size, c.bias});
    out = Linear({c.heads * c.head_size, c.hidden, c.out_bias});
  }
  if (c.qk_norm_eps) {
    q_norm = RmsNorm(c.head_size, *c.qk_norm_eps);
    k_norm = RmsNorm(c.head_size, *c.qk_norm_eps);
  }
}

void ProjectedAttention::visit(const Visitor& visitor) {
  visitor(config_.q, q);
  if (!config_.fused) {
    visitor(config_.k, k);
    visitor(config_.v, v);
  }
  visitor(config_.out, out);
  if (config_.qk_norm_eps) {
    visitor("q_norm", q_norm);
    visitor("k_norm", k_norm);
  }
}

Tensor ProjectedAttention::project_jointly(const Tensor& x, std::optional<DType> dtype) const {
  const std::array<std::uint64_t, 3> ids{q.weight.id(), k.weight.id(), v.weight.id()};
  PackedWeight weight;
  Tensor bias;
  {
    const std::scoped_lock lock(joint_->mutex);
    if (Tape::recording()) {  // the weights are about to change
      joint_->ids = {};
      joint_->weight = {};
    } else if (joint_->ids != ids) {
      Weight all(concat({q.weight, k.weight, v.weight}, 0));
      if (all.is_quantized()) {
        all.scale = concat({q.weight.scale, k.weight.scale, v.weight.scale}, 0);
        all.spread = q.weight.spread;
      }
      joint_->weight = pack(all, false);
      if (config_.bias) joint_->bias = concat({q.bias, k.bias, v.bias}, 0);
      joint_->ids = ids;
      for (const Linear* part : {&q, &k, &v}) drop_pages(part->weight);
    }
    weight = joint_->weight;
    bias = joint_->bias;
  }
  if (!Tape::recording()) return linear(x, weight, bias, Activation::none, dtype);
  const Tensor y = linear(x, concat({q.weight, k.weight, v.weight}, 0),
                          config_.bias ? concat({q.bias, k.bias, v.bias}, 0) : Tensor());
  return dtype ? to(y, *dtype) : y;
}

ProjectedAttention::Heads ProjectedAttention::project_plainly(const Tensor& x,
                                                              const AttentionCall& call,
                                                              std::optional<DType> dtype) const {
  const AttentionConfig& c = config_;
  const auto with = [&](const Linear& layer, const Tensor& of) {
    return layer(of, Activation::none, dtype);
  };
  if (c.cross) {
    Heads heads{split_heads(with(q, x), c.heads), {}, {}};
    if (call.cache != nullptr && call.cache->has_memory(call.layer)) return heads;
    check(call.memory.defined(), "attention: cross-attention needs the encoder's output");
    heads.keys = split_heads(with(k, call.memory), c.kv_heads);
    heads.values = split_heads(with(v, call.memory), c.kv_heads);
    return heads;
  }
  const bool joins = !c.fused && q.weight.defined() && are_alike(q.weight, k.weight) &&
                     are_alike(q.weight, v.weight);
  if (!c.fused && !joins) {
    return {split_heads(with(q, x), c.heads), split_heads(with(k, x), c.kv_heads),
            split_heads(with(v, x), c.kv_heads)};
  }
  const Tensor all = c.fused ? with(q, x) : project_jointly(x, dtype);
  const std::vector<Tensor> parts =
      split(all, 2, {c.heads * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size});
  return {split_heads(parts[0], c.heads), split_heads(parts[1], c.kv_heads),
          split_heads(parts[2], c.kv_heads)};
}

ProjectedAttention::Heads ProjectedAttention::project(const Tensor& x,
                                                      const AttentionCall& call) const {
  const AttentionConfig& c = config_;
  check(x.rank() == 3 && x.size(2) == c.hidden, "attention: x must be [B, S, {}], got {}", c.hidden,
        x.shape());
  // bf16 and int8 weights: attention multiplies in bf16 too.
  const bool is_narrow = q.weight.dtype() == DType::bf16 || q.weight.is_quantized();
  const auto narrow = [&](const Tensor& t) { return is_narrow ? to(t, DType::bf16) : t; };
  // Nothing comes between the product and its rounding: the product rounds. A tape has its
  // gradients rounded where they always were, one tensor at a time.
  const bool at_once = is_narrow && !c.qk_norm_eps && call.rotary == nullptr && !Tape::recording();
  auto [queries, keys, values] =
      project_plainly(x, call, at_once ? std::optional(DType::bf16) : std::nullopt);
  if (c.qk_norm_eps) {
    queries = q_norm(queries);
    if (keys.defined()) keys = k_norm(keys);
  }
  if (call.rotary != nullptr) {
    queries = rotary(queries, call.rotary->cos, call.rotary->sin);
    keys = rotary(keys, call.rotary->cos, call.rotary->sin);
  }
  queries = narrow(queries);
  if (keys.defined()) {
    keys = narrow(keys);
    values = narrow(values);
  }
  return {queries, keys, values};
}

Tensor ProjectedAttention::finish(const Tensor& attended, DType dtype) const {
  return out(to(merge_heads(attended), dtype));
}

Tensor MultiHeadAttention::operator()(const Tensor& x, const AttentionCall& call) const {
  const AttentionConfig& c = config();
  auto [queries, keys, values] = project(x, call);
  AttentionOptions options;
  Tensor lengths;
  if (call.cache != nullptr) {
    KvCache::View view;
    if (!c.cross) {
      view = call.cache->append(call.layer, keys, values, c.window);
    } else {
      if (keys.defined()) call.cache->set_memory(call.layer, keys, values);
      view = call.cache->memory(call.layer);
    }
    keys = view.keys;
    values = view.values;
    options.key_scale = view.key_scale;
    options.value_scale = view.value_scale;
    lengths = view.lengths;
    if (is_floating(keys.dtype())) queries = to(queries, keys.dtype());
  }
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.bias = call.bias;
  options.mask = call.mask;
  if (lengths.defined()) options.mask = options.mask & Mask::lengths(lengths);
  Tensor& allowed = options.mask.allowed_pairs;
  if (allowed.defined() && allowed.size(-1) > keys.size(2)) {
    // A cache with a window has forgotten the oldest keys.
    allowed = slice(allowed, -1, allowed.size(-1) - keys.size(2), allowed.size(-1));
  }
  if (c.causal) options.mask = options.mask & Mask::causal();
  if (c.window > 0) options.mask = options.mask & Mask::window(c.window - 1, -1);
  if (call.trace != nullptr && call.trace->attentions) {
    (c.cross ? call.trace->cross_weights : call.trace->attention_weights)
        .push_back(attention_weights(queries, keys, options));
  }
  const char* kind = c.cross ? "cross" : "self";
  const Tensor attended = attend({queries, keys, values}, options,
                                 {.kind = kind, .dropout = c.dropout, .layer = this}, call);
  return finish(attended, x.dtype());
}

}  // namespace qkv::nn
