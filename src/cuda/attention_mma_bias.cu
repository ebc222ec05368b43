// Gradients of biases by matrix instructions, but for floats (attention_mma_floats.cu).
#include "cuda/attention_mma_bias.cuh"

namespace qkv::cuda {

void mma_bias_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                       const MmaBackward& x, const BiasResult& to, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_mma_bias<device_bf16>(job, grid, x, to, stream);
  } else if (dtype == DType::f16) {
    launch_mma_bias<device_f16>(job, grid, x, to, stream);
  } else {
    exact_mma_bias(job, grid, x, to, stream);
  }
  check_launch("attention backward");
}

void mma_diagonal_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                           const MmaBackward& x, int buckets, float* partial, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    launch_mma_diagonal<device_bf16>(job, grid, x, buckets, partial, stream);
  } else if (dtype == DType::f16) {
    launch_mma_diagonal<device_f16>(job, grid, x, buckets, partial, stream);
  } else {
    exact_mma_diagonal(job, grid, x, buckets, partial, stream);
  }
  check_launch("attention backward");
}

}  // namespace qkv::cuda
