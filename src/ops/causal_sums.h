// causal_product for a sequence that comes in parts.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

struct CausalSums {
  Tensor y;      // f32 [B, H, S, R]: causal_product(a, b, c) and a times the carry
  Tensor carry;  // f32 [B, H, P, R]: what was given, and all b c^T
};
// a, b [B, H, S, P], c [B, H, S, R]; carry f32 [B, H, P, R], or undefined: nothing came before.
// Recorded, both results.
CausalSums causal_sums(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& carry);

}  // namespace qkv
