// Keys and values in pages, as AttentionOptions::pages has them.
#pragma once

#include "core/attention_problem.h"

namespace qkv {

// The problem of a call with pages, every entry of the table checked. `options` are those of the
// call.
AttentionProblem check_paged_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionOptions& options);

// The pages of each sequence side by side: [P, Hk, page, D] -> [B, Hk, N * page, D].
Tensor in_one_piece(const Tensor& pool, const Tensor& pages);

}  // namespace qkv
