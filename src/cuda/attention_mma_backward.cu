// Attention backward by matrix instructions, but for floats (attention_mma_exact.cu,
// attention_mma_tf32.cu).
#include "cuda/attention_mma_backward.cuh"

namespace qkv::cuda {

std::int64_t mma_backward_bytes(MmaElements elements, std::int64_t size) {
  return dispatch_mma(elements, size,
                      [&]<class T, int kSize>() { return BackwardPlan<T, kSize>::kBytes; });
}

void mma_backward(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                  const MmaBackward& x, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(x.failed, 0, sizeof(*x.failed), stream), "attention backward");
  mma_rows(job, grid, elements, x, stream);
  if (elements.dtype == DType::bf16) {
    launch_mma_backward<device_bf16>(job, grid, x, stream);
  } else if (elements.dtype == DType::f16) {
    launch_mma_backward<device_f16>(job, grid, x, stream);
  } else if (elements.tf32) {
    tf32_mma_backward(job, grid, x, stream);
  } else {
    exact_mma_backward(job, grid, x, stream);
  }
  check_launch("attention backward");
}

}  // namespace qkv::cuda
