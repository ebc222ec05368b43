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

// Every statistic but `received`, too.
void short_forward(const AttentionJob& job, const AttentionGrid& grid, const AttentionResults& out,
                   cudaStream_t stream);
// Shared memory of a block of short_backward, for sequences of at most that many rows.
std::int64_t short_backward_bytes(std::int64_t rows, std::int64_t head_size);
void short_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                    const BackwardTensors& tensors, cudaStream_t stream);

}  // namespace qkv::cuda
