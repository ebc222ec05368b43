// The kernels by matrix instructions for floats that are not rounded (tile/exact.cuh). In a file of
// their own because of how the assembler is to treat them (cmake/QkvCuda.cmake).
#include "cuda/attention_mma_backward.cuh"
#include "cuda/attention_mma_forward.cuh"

namespace qkv::cuda {

void exact_mma_forward(const AttentionJob& job, const AttentionGrid& grid, const MmaForward& to,
                       cudaStream_t stream) {
  launch_mma_forward<float>(job, grid, to, stream);
}

void exact_mma_backward(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                        cudaStream_t stream) {
  launch_mma_backward<float>(job, grid, x, stream);
}

}  // namespace qkv::cuda
