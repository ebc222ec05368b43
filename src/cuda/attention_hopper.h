// Attention by the kernels that use Hopper's own instructions, where they can do what is asked.
#pragma once

#include "core/attention_problem.h"
#include "cuda/cuda_backend.h"

namespace qkv::cuda {

// Empty when the fast kernels can run it, else what they cannot do.
std::string why_not_hopper(const AttentionProblem& problem, const AttentionResults& results);
// "decode" or "sm90".
std::string hopper_kernel(const AttentionProblem& problem, const AttentionResults& results);
void hopper_forward(CudaBackend& backend, const AttentionProblem& problem,
                    const AttentionResults& results);

}  // namespace qkv::cuda
