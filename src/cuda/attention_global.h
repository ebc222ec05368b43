// Windows whose first positions are global, from passes that the fast kernels can do.
#pragma once

#include <string>

#include "cuda/cuda_backend.h"

namespace qkv::cuda {

// Why a call cannot be split into such passes; empty when it can.
std::string why_not_split(const AttentionProblem& p, const AttentionResults& results);
std::string why_not_split(const AttentionProblem& p, const AttentionBackward& t);

void split_forward(CudaBackend& backend, const AttentionProblem& p,
                   const AttentionResults& results);
void split_backward(CudaBackend& backend, const AttentionProblem& p, const AttentionBackward& t);

}  // namespace qkv::cuda
