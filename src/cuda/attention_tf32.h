// Attention of f32 inputs by matrix instructions, which round what they multiply to TF32: for calls
// that permit it.
#pragma once

#include <string>

#include "core/attention_problem.h"
#include "cuda/attention.h"

namespace qkv::cuda {

// Empty when these kernels can run it, else the reason. Asks nothing about `problem.tf32`.
std::string why_not_tf32(const AttentionProblem& problem, const AttentionResults& results);
std::string why_not_tf32(const AttentionProblem& problem, const AttentionBackward& tensors);

void tf32_forward(const AttentionJob& job, const AttentionGrid& grid, const Rows& out, float* lse,
                  cudaStream_t stream);

struct Tf32Backward {
  BackwardTensors tensors;
  BackwardRows rows;  // written: what gradients of sinks need, too
  float* shift;       // like lse, for the time of the call
  // Written: not 0 when inputs hold what products cannot be trusted with. The gradients are worth
  // nothing then, and the general kernels have to make them.
  std::uint32_t* failed;
};
void tf32_backward(const AttentionJob& job, const AttentionGrid& grid, const Tf32Backward& x,
                   cudaStream_t stream);

// Shared memory of a block, for heads of this size.
std::int64_t tf32_forward_bytes(std::int64_t size);
std::int64_t tf32_backward_bytes(std::int64_t size);

}  // namespace qkv::cuda
