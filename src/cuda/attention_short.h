// Attention of short sequences: many small problems, each with a few warps and all it needs in
// shared memory. A batch of sentences is such a thing.
#pragma once

#include <string>

#include "core/attention_problem.h"
#include "cuda/attention.h"

namespace qkv::cuda {

// Empty when the kernels for short sequences can run it and are the best there are, else the
// reason.
std::string why_not_short(const AttentionProblem& problem, const AttentionResults& results);
std::string why_not_short(const AttentionProblem& problem, const AttentionBackward& tensors);

void short_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype, const Rows& out,
                   float* lse, cudaStream_t stream);
void short_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                    const BackwardTensors& tensors, cudaStream_t stream);

}  // namespace qkv::cuda
