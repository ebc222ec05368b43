// Attention backward for Hopper GPUs: the calls that attention_forward_sm90 serves, without a
// softcap of heads above 128.
#pragma once

#include "cuda/attention_forward_sm90.h"

namespace qkv::cuda {

struct Sm90Backward {
  Sm90Forward forward;  // q, k, v, out, lse and the mask of the forward call
  const void* dout = nullptr;
  const float* dlse = nullptr;  // like lse, or null
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  Sm90Strides dout_strides, dq_strides, dk_strides, dv_strides;
  bool deterministic = true;  // the same bits every time; a little slower
  // Under a bias, like lse: weights are e^(score - top) share.
  const float *row_top = nullptr, *row_share = nullptr;
  // For FarSums of sm90_far_parts, or null. Those of keys that nobody sees are not written.
  float* far_sums = nullptr;
  void* workspace = nullptr;  // sm90_backward_workspace bytes on the device
};

// Null when attention_backward_sm90 can serve this call, else the reason why not.
const char* why_not_sm90_backward(const Sm90Backward& call);
std::int64_t sm90_backward_workspace(const Sm90Backward& call);
int sm90_far_parts(const Sm90Backward& call);

// Returns a word on the device, within the workspace. It is 0 after the launch, unless the inputs
// hold values over which matrix products cannot be trusted (NaN or Inf under a mask, which hidden
// pairs would feel, or scores beyond 2^20): then nothing is promised of dq, dk and dv, and the
// general kernel, launched behind this one to run only where the word is not 0, writes them.
const std::uint32_t* attention_backward_sm90(const Sm90Backward& call, cudaStream_t stream);

}  // namespace qkv::cuda
