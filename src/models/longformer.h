// Attention within a window, with chosen positions that see and are seen by all through projections
// of their own (Beltagy et al. 2020).
#pragma once

#include "qkv/nn.h"

namespace qkv {

class LongformerAttention final : public nn::Attention {
 public:
  LongformerAttention() = default;
  // window: a query sees |i - j| <= window / 2.
  LongformerAttention(const nn::AttentionConfig& config, std::int64_t window);
  void visit(const nn::Visitor& visitor) override;

  // Uses the mask (of padding), `global` and `visible` of the call.
  Tensor operator()(const Tensor& x, const nn::AttentionCall& call) const override;

 private:
  std::int64_t heads_ = 0, window_ = 0;
  double dropout_ = 0;
  nn::Linear query_, key_, value_, query_global_, key_global_, value_global_, out_;
};

}  // namespace qkv
