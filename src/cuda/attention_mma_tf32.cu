// The kernels by matrix instructions for floats that are rounded to TF32. In a file of their own
// because they are compiled for Ampere and for Hopper apart (cmake/QkvCuda.cmake).
#include "cuda/attention_mma_backward.cuh"
#include "cuda/attention_mma_forward.cuh"

namespace qkv::cuda {

void tf32_mma_forward(const AttentionJob& job, const AttentionGrid& grid, const MmaForward& to,
                      cudaStream_t stream) {
  launch_mma_forward<Tf32>(job, grid, to, stream);
}

void tf32_mma_backward(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                       cudaStream_t stream) {
  launch_mma_backward<Tf32>(job, grid, x, stream);
}

}  // namespace qkv::cuda
