#include "core/check.h"
#include "qkv/nn.h"

namespace qkv::nn {
namespace {

// [B, S, heads * D] -> [B, heads, S, D], a view
Tensor split_heads(const Tensor& x, std::int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

// [B, H, S, D] -> [B, S, H * D]; attention lays its result out so that this is a view
Tensor merge_heads(const Tensor& x) {
  return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const AttentionConfig& config) : config_(config) {
  AttentionConfig& c = config_;
  check(c.heads > 0 && c.hidden > 0, "attention: hidden {} and heads {} must be positive", c.hidden,
        c.heads);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_size == 0) {
    check(c.hidden % c.heads == 0, "attention: hidden size {} is not a multiple of {} heads",
          c.hidden, c.heads);
    c.head_size = c.hidden / c.heads;
  }
  check(c.heads % c.kv_heads == 0, "attention: {} heads are not a multiple of {} key heads",
        c.heads, c.kv_heads);
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

void MultiHeadAttention::visit(const Visitor& visitor) {
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

Tensor MultiHeadAttention::operator()(const Tensor& x, const AttentionCall& call) const {
  const AttentionConfig& c = config_;
  check(x.rank() == 3 && x.size(2) == c.hidden, "attention: x must be [B, S, {}], got {}", c.hidden,
        x.shape());
  // bf16 weights: attention multiplies in bf16 too.
  const auto narrow = [&](const Tensor& t) {
    return q.weight.dtype() == DType::bf16 ? to(t, DType::bf16) : t;
  };
  Tensor queries, keys, values;
  if (c.fused) {
    const Tensor all = reshape(q(x), {x.size(0), x.size(1), 3, c.heads, c.head_size});
    const auto part = [&](std::int64_t i) {
      return transpose(
          reshape(slice(all, 2, i, i + 1), {x.size(0), x.size(1), c.heads, c.head_size}), 1, 2);
    };
    queries = part(0);
    keys = part(1);
    values = part(2);
  } else {
    queries = split_heads(q(x), c.heads);
    const Tensor& source = c.cross ? call.memory : x;
    if (!c.cross || call.cache == nullptr || !call.cache->has_memory(call.layer)) {
      check(source.defined(), "attention: cross-attention needs the encoder's output");
      keys = split_heads(k(source), c.kv_heads);
      values = split_heads(v(source), c.kv_heads);
    }
  }
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
  }

  AttentionOptions options;
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.bias = call.bias;
  options.mask = call.mask;
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
  return out(to(merge_heads(attention(queries, keys, values, options)), x.dtype()));
}

}  // namespace qkv::nn
