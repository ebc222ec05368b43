#include <algorithm>
#include <functional>

#include "core/backend.h"
#include "core/check.h"
#include "nn/attend.h"
#include "nn/dilation.h"
#include "nn/heads.h"
#include "qkv/long_attention.h"

namespace qkv::nn {
namespace {

// Where the global rows are: `gather` [B, G] picks rows of [B * S] (short sequences repeat their
// first row), `merge` [B, S] picks from the B * S local rows followed by the B * G global ones.
struct GlobalRows {
  std::int64_t count = 0;  // G
  Tensor gather, merge;
};

GlobalRows find_rows(const Tensor& global) {
  const std::int64_t batch = global.size(0), length = global.size(1);
  const std::vector<bool> chosen = to(global, DType::boolean).to_vector<bool>();
  GlobalRows rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = chosen.begin() + b * length;
    rows.count = std::max<std::int64_t>(rows.count, std::count(row, row + length, true));
  }
  if (rows.count == 0) return rows;
  std::vector<std::int64_t> gather(static_cast<std::size_t>(batch * rows.count));
  std::vector<std::int64_t> merge(static_cast<std::size_t>(batch * length));
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t at = b * length + i;
      merge[at] = at;
      if (!chosen[at]) continue;
      gather[b * rows.count + found] = at;
      merge[at] = batch * length + b * rows.count + found++;
    }
    for (; found < rows.count; ++found) gather[b * rows.count + found] = b * length;
  }
  rows.gather = Tensor::from(gather, {batch, rows.count});
  rows.merge = Tensor::from(merge, {batch, length});
  return rows;
}

// The first `count` positions of each sequence, boolean [B, S].
Tensor first_positions(std::int64_t count, const Tensor& x) {
  const std::int64_t batch = x.size(0), length = x.size(1);
  Tensor global = Tensor::zeros({batch, length}, {DType::boolean});
  for (std::int64_t b = 0; b < batch; ++b) {
    std::fill_n(global.data<bool>() + b * length, std::min(count, length), true);
  }
  return global;
}

}  // namespace

LongformerAttention::LongformerAttention(const AttentionConfig& given,
                                         const LongformerConfig& longformer)
    : ProjectedAttention(given), longformer_(longformer) {
  const AttentionConfig& c = config();
  std::vector<std::int64_t>& dilations = longformer_.dilations;
  check(longformer.window >= 2, "longformer: the window must be at least 2, got {}",
        longformer.window);
  check(!c.cross && c.window == 0,
        "longformer: it is for self-attention, with a window of its own");
  if (dilations.empty()) dilations = {1};
  if (dilations.size() == 1) dilations.resize(static_cast<std::size_t>(c.heads), dilations[0]);
  check(dilations.size() == static_cast<std::size_t>(c.heads),
        "longformer: {} dilations for {} heads", dilations.size(), c.heads);
  check(*std::min_element(dilations.begin(), dilations.end()) >= 1,
        "longformer: a dilation must be at least 1");
  check(!is_dilated() || c.kv_heads == c.heads,
        "longformer: heads with a dilation need a key head each, got {} for {}", c.kv_heads,
        c.heads);
  if (!longformer.global_projections) return;
  check(!c.causal && !c.fused && c.kv_heads == c.heads,
        "longformer: projections of their own for global positions, which see all, are not for "
        "causal, fused or grouped attention");
  for (Linear* projection : {&q_global_, &k_global_, &v_global_}) {
    *projection = Linear({c.hidden, c.heads * c.head_size, c.bias});
  }
}

bool LongformerAttention::is_dilated() const {
  return std::any_of(longformer_.dilations.begin(), longformer_.dilations.end(),
                     [](std::int64_t d) { return d > 1; });
}

void LongformerAttention::visit(const Visitor& visitor) {
  const AttentionConfig& c = config();
  if (!longformer_.global_projections) return ProjectedAttention::visit(visitor);
  visitor(c.q, q);
  visitor(c.k, k);
  visitor(c.v, v);
  visitor(c.q + "_global", q_global_);
  visitor(c.k + "_global", k_global_);
  visitor(c.v + "_global", v_global_);
  visitor(c.out, out);
  if (c.qk_norm_eps) {
    visitor("q_norm", q_norm);
    visitor("k_norm", k_norm);
  }
}

// Positions that the call names come before the config's.
Mask LongformerAttention::global_mask(const AttentionCall& call) const {
  return call.global.defined() ? Mask::global(call.global)
                               : Mask::global(longformer_.global_tokens);
}

Tensor LongformerAttention::operator()(const Tensor& x, const AttentionCall& call) const {
  const bool has_global = call.global.defined() || longformer_.global_tokens > 0;
  check(!has_global || !is_dilated(),
        "longformer: heads with a dilation cannot have global positions");
  check(!call.bias.defined() || !is_dilated(),
        "longformer: heads with a dilation cannot have a bias by position");
  const Heads heads = project(x, call);
  Tensor y;
  if (call.cache != nullptr) {
    y = attend_to_cache(heads, call);
  } else {
    y = is_dilated() ? attend_dilated(heads, call) : attend_to(heads, call);
  }
  y = to(merge_heads(y), x.dtype());
  if (longformer_.global_projections && has_global) y = attend_globally(x, y, call);
  if (call.visible.defined()) y = mul(y, call.visible);
  return out(y);
}

// No heads with a dilation; keys may be those of a cache, behind which the queries stand.
Tensor LongformerAttention::attend_to(const Heads& heads, const AttentionCall& call) const {
  const AttentionConfig& c = config();
  AttentionOptions options;
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.bias = call.bias;
  options.mask =
      call.mask & Mask::window(longformer_.window / 2, longformer_.window / 2) & global_mask(call);
  if (c.causal) options.mask = options.mask & Mask::causal();
  if (call.trace != nullptr && call.trace->attentions) {
    call.trace->attention_weights.push_back(attention_weights(heads.queries, heads.keys, options));
  }
  return attend({heads.queries, heads.keys, heads.values}, options,
                {.dropout = c.dropout, .layer = this}, call);
}

// Neighbours of equal dilation together: every d-th position is a sequence of its own.
Tensor LongformerAttention::attend_dilated(const Heads& heads, const AttentionCall& call) const {
  const AttentionConfig& c = config();
  const std::vector<std::int64_t>& dilations = longformer_.dilations;
  check(call.trace == nullptr || !call.trace->attentions,
        "longformer: the weights of heads with a dilation cannot be looked at");
  std::vector<Tensor> parts;
  for (std::int64_t first = 0, next = 0; first < c.heads; first = next) {
    const std::int64_t d = dilations[static_cast<std::size_t>(first)];
    while (next < c.heads && dilations[static_cast<std::size_t>(next)] == d) ++next;
    const auto thin = [&](const Tensor& x) { return dilate(slice(x, 1, first, next), d); };
    AttentionOptions options;
    options.scale = c.scale;
    options.softcap = c.softcap;
    options.mask = dilated_mask(call.mask, heads.keys, d) &
                   Mask::window(longformer_.window / 2, longformer_.window / 2);
    if (c.causal) options.mask = options.mask & Mask::causal();
    const Tensor attended = attend({thin(heads.queries), thin(heads.keys), thin(heads.values)},
                                   options, {.dropout = c.dropout}, call);
    parts.push_back(undilate(attended, d, heads.queries.size(2)));
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 1);
}

Tensor LongformerAttention::attend_to_cache(const Heads& heads, const AttentionCall& call) const {
  check(config().causal, "longformer: a cache is for causal attention");
  check<NotRecordable>(!call.cache->place,
                       "longformer: a window over the cache depends on its length, which only the "
                       "device knows in a recorded step");
  check(!call.global.defined() && longformer_.global_tokens == 0,
        "longformer: global positions look ahead and back, which decoding cannot");
  const std::vector<std::int64_t>& dilations = longformer_.dilations;
  const std::int64_t widest = *std::max_element(dilations.begin(), dilations.end());
  const std::int64_t count = heads.queries.size(2);
  std::int64_t reach = 0;
  check(!__builtin_mul_overflow(longformer_.window / 2, widest, &reach) && reach < INT64_MAX,
        "longformer: a window of {} with a dilation of {} reaches too far", longformer_.window,
        widest);
  const bool is_first = call.cache->length() == (call.layer == 0 ? 0 : count);
  const KvCache::View view = call.cache->append(call.layer, heads.keys, heads.values, reach + 1);
  if (is_first && is_dilated()) return attend_dilated(heads, call);
  AttentionOptions options;
  options.scale = config().scale;
  options.softcap = config().softcap;
  options.bias = call.bias;
  options.key_scale = view.key_scale;
  options.value_scale = view.value_scale;
  options.mask = call.mask;
  const std::int64_t stored = view.keys.size(2);
  Tensor& allowed = options.mask.allowed_pairs;
  if (allowed.defined() && allowed.size(-1) > stored) {
    allowed = slice(allowed, -1, allowed.size(-1) - stored, allowed.size(-1));
  }
  if (is_dilated()) {
    check(!allowed.defined(), "longformer: padding while decoding with a dilation is not possible");
    allowed =
        to(dilated_pairs(dilations, longformer_.window / 2, count, stored), heads.queries.device());
  } else {
    options.mask = options.mask & Mask::window(longformer_.window / 2, -1);
  }
  options.mask = options.mask & Mask::causal();
  const Tensor queries =
      is_floating(view.keys.dtype()) ? to(heads.queries, view.keys.dtype()) : heads.queries;
  if (call.trace != nullptr && call.trace->attentions) {
    call.trace->attention_weights.push_back(attention_weights(queries, view.keys, options));
  }
  return attend({queries, view.keys, view.values}, options,
                {.dropout = config().dropout, .layer = this}, call);
}

// Rows of global positions are replaced by what their own projections see everywhere.
Tensor LongformerAttention::attend_globally(const Tensor& x, const Tensor& local,
                                            const AttentionCall& call) const {
  const GlobalRows rows = find_rows(
      call.global.defined() ? call.global : first_positions(longformer_.global_tokens, x));
  if (rows.count == 0) return local;
  const std::int64_t batch = x.size(0), length = x.size(1), width = local.size(2);
  const auto split = [&](const Tensor& projected) {
    return split_heads(projected, config().heads);
  };
  const Tensor chosen = embedding(rows.gather, reshape(x, {batch * length, x.size(2)}));
  AttentionOptions everywhere;
  everywhere.scale = config().scale;
  everywhere.softcap = config().softcap;
  everywhere.mask = call.mask;
  const Tensor global = attend({split(q_global_(chosen)), split(k_global_(x)), split(v_global_(x))},
                               everywhere, {.kind = "global", .dropout = config().dropout}, call);
  const Tensor both = concat({reshape(local, {batch * length, width}),
                              reshape(merge_heads(global), {batch * rows.count, width})},
                             0);
  return embedding(rows.merge, both);
}

}  // namespace qkv::nn
