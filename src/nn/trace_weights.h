// What a trace is told of attention whose weights are no softmax of its scores.
#pragma once

#include "nn/attend.h"

namespace qkv::nn {

// `weights` [B, H, Sq, Sk], of either sign, as an exact attention that has the same: the scores are
// those of queries and keys, and a bias makes up the difference. O(S^2), for looking.
void trace_weights(const AttentionCall& call, const Attended& x, const AttentionOptions& options,
                   const Tensor& weights);

}  // namespace qkv::nn
