// What only a training pass does.
#include <string_view>

#include "core/philox.h"
#include "nn/attend.h"
#include "qkv/nn.h"

namespace qkv::nn {

std::uint64_t Training::next_seed() {
  const std::uint64_t draw = draws++;
  const auto words = philox_words(
      {static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32), 0, 3}, seed);
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

Tensor dropout(const Tensor& x, double p, Training* training) {
  return training == nullptr || p == 0 ? x : qkv::dropout(x, p, training->next_seed());
}

Tensor enter_stream(const Tensor& x, double p, Training* training) {
  return training == nullptr ? x : dropout(to(x, training->dtype), p, training);
}

Tensor attend(const Attended& x, AttentionOptions options, const AttendOptions& how,
              const AttentionCall& call) {
  Training* training = call.training;
  if (training != nullptr) {
    options.statistics = training->statistics;
    if (how.dropout > 0) {
      options.dropout = static_cast<float>(how.dropout);
      options.seed = training->next_seed();
    }
  }
  // Of Longformer's global rows a trace sees the attention within the window.
  const bool is_global = std::string_view(how.kind) == "global";
  if (call.trace != nullptr && call.trace->on_attention && !is_global) {
    call.trace->on_attention(
        {std::string_view(how.kind) == "cross", x.queries, x.keys, x.values, options});
  }
  const AttentionForward forward = attention_forward(x.queries, x.keys, x.values, options);
  if (options.statistics != Statistics::none) {
    training->health.push_back(
        {.name = std::string(call.side) + "." + std::to_string(call.layer) + "." + how.kind,
         .statistics = forward.statistics,
         .queries = x.queries,
         .keys = x.keys,
         .layer = how.layer});
  }
  return forward.out;
}

}  // namespace qkv::nn
