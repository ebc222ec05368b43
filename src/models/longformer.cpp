#include "models/longformer.h"

#include <algorithm>

#include "core/check.h"
#include "nn/attend.h"
#include "nn/heads.h"

namespace qkv {

using nn::merge_heads;
using nn::split_heads;

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

}  // namespace

LongformerAttention::LongformerAttention(const nn::AttentionConfig& config, std::int64_t window)
    : heads_(config.heads), window_(window), dropout_(config.dropout) {
  const std::int64_t hidden = config.hidden;
  check(hidden % heads_ == 0, "longformer: hidden size {} is not a multiple of {} heads", hidden,
        heads_);
  for (nn::Linear* projection :
       {&query_, &key_, &value_, &query_global_, &key_global_, &value_global_, &out_}) {
    *projection = nn::Linear({hidden, hidden});
  }
}

void LongformerAttention::visit(const nn::Visitor& visitor) {
  visitor("self.query", query_);
  visitor("self.key", key_);
  visitor("self.value", value_);
  visitor("self.query_global", query_global_);
  visitor("self.key_global", key_global_);
  visitor("self.value_global", value_global_);
  visitor("output.dense", out_);
}

Tensor LongformerAttention::operator()(const Tensor& x, const nn::AttentionCall& call) const {
  const std::int64_t batch = x.size(0), length = x.size(1), hidden = x.size(2);
  AttentionOptions local;
  local.mask = call.mask & Mask::window(window_ / 2, window_ / 2);
  if (call.global.defined()) local.mask = local.mask & Mask::global(call.global);
  const auto split = [&](const Tensor& projected) { return split_heads(projected, heads_); };
  Tensor y = merge_heads(nn::attend({split(query_(x)), split(key_(x)), split(value_(x))}, local,
                                    {.dropout = dropout_}, call));

  const GlobalRows rows = call.global.defined() ? find_rows(call.global) : GlobalRows{};
  if (rows.count > 0) {
    const Tensor chosen = embedding(rows.gather, reshape(x, {batch * length, hidden}));
    AttentionOptions everywhere;
    everywhere.mask = call.mask;
    const Tensor global =
        nn::attend({split(query_global_(chosen)), split(key_global_(x)), split(value_global_(x))},
                   everywhere, {.kind = "global", .dropout = dropout_}, call);
    const Tensor both = concat({reshape(y, {batch * length, hidden}),
                                reshape(merge_heads(global), {batch * rows.count, hidden})},
                               0);
    y = embedding(rows.merge, both);
  }
  if (call.visible.defined()) y = mul(y, call.visible);
  return out_(y);
}

}  // namespace qkv
