// Attention forward by matrix instructions, but for floats (attention_mma_exact.cu,
// attention_mma_tf32.cu).
#include "cuda/attention_mma_forward.cuh"

namespace qkv::cuda {

std::int64_t mma_forward_bytes(MmaElements elements, std::int64_t size) {
  return dispatch_mma(elements, size,
                      [&]<class T, int kSize>() { return ForwardPlan<T, kSize>::kBytes; });
}

void mma_forward(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                 const MmaForward& to, cudaStream_t stream) {
  if (elements.dtype == DType::bf16) {
    launch_mma_forward<device_bf16>(job, grid, to, stream);
  } else if (elements.dtype == DType::f16) {
    launch_mma_forward<device_f16>(job, grid, to, stream);
  } else if (elements.tf32) {
    tf32_mma_forward(job, grid, to, stream);
  } else {
    exact_mma_forward(job, grid, to, stream);
  }
  check_launch("attention");
}

}  // namespace qkv::cuda
