// The kernels of the CPU backend, one file each.
#pragma once

#include "core/attention_problem.h"

namespace qkv::cpu {

void softmax(const Tensor& x, Tensor& y);
void attention_forward(const AttentionProblem& problem, const AttentionResults& results);
void attention_backward(const AttentionProblem& problem, const AttentionBackward& tensors);
void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted);

}  // namespace qkv::cpu
