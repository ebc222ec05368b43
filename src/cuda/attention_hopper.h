// Attention by the kernels that use Hopper's own instructions, where they can do what is asked.
#pragma once

#include "core/attention_problem.h"
#include "cuda/attention_far_sums.h"
#include "cuda/cuda_backend.h"

namespace qkv::cuda {

// Empty when the fast kernels can run it, else what they cannot do.
std::string why_not_hopper(const AttentionProblem& problem, const AttentionResults& results);
std::string why_not_hopper(const AttentionProblem& problem, const AttentionBackward& tensors);
// Whether they decode it, which they also do where only the device knows how many keys there are.
bool decodes(const AttentionProblem& problem, const AttentionResults& results);
// "decode" or "sm90".
std::string hopper_kernel(const AttentionProblem& problem, const AttentionResults& results);
// What a call needs besides, on the device.
struct HopperExtras {
  // What weights of rows are made of, like lse: p = e^(s - top) share. For backward under a bias.
  const float *top = nullptr, *share = nullptr;
  // What a table of relative positions adds at distances -reach .. reach: [heads][2 reach + 1].
  const float* diagonal = nullptr;
  int reach = 0;
};
void hopper_forward(CudaBackend& backend, const AttentionProblem& problem,
                    const AttentionResults& results, const HopperExtras& extras = {});
// `served` is a word on the device, 0 when the kernel could do it. Where it is not, the inputs hold
// what matrix products cannot be trusted with, and the general kernel has to.
struct HopperBackward {
  Tensor workspace, sums;
  const std::uint32_t* served = nullptr;
  FarSums far;  // where the gradient of a table or slopes is asked for
};
HopperBackward hopper_backward(CudaBackend& backend, const AttentionProblem& problem,
                               const AttentionBackward& tensors, const HopperExtras& extras = {});

}  // namespace qkv::cuda
