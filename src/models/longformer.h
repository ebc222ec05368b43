// Attention within a window, with chosen positions that see and are seen by all through projections
// of their own (Beltagy et al. 2020).
#pragma once

#include "qkv/nn.h"

namespace qkv {

class LongformerAttention final : public nn::Module {
 public:
  LongformerAttention() = default;
  // window: a query sees |i - j| <= window / 2.
  LongformerAttention(std::int64_t hidden, std::int64_t heads, std::int64_t window);
  void visit(const nn::Visitor& visitor) override;

  struct Call {
    Mask padding{};    // lengths or allowed keys
    Tensor global{};   // boolean [B, S], or undefined
    Tensor visible{};  // f32 [B, S, 1], 0 at padding; undefined: all are tokens
  };
  Tensor operator()(const Tensor& x, const Call& call) const;

 private:
  std::int64_t heads_ = 0, window_ = 0;
  nn::Linear query_, key_, value_, query_global_, key_global_, value_global_, out_;
};

}  // namespace qkv
