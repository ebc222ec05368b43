// From the arguments of an attention call to the problem a kernel solves, or an Error that names
// the argument at fault.
#pragma once

#include "core/attention_problem.h"

namespace qkv {

// [B, H, S, D] as it is; packed [T, H, D] as a [1, H, T, D] view.
Tensor attention_batch(const Tensor& x, bool packed);

// `v` is null for attention_weights.
AttentionProblem check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                                 const AttentionOptions& options);
void check_attention_grads(const AttentionOutputGrads& grads, const AttentionForward& forward,
                           const AttentionProblem& problem, bool packed);

}  // namespace qkv
