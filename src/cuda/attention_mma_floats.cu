// What floats have besides forward and backward: gradients of biases, and what keys receive. In a
// file of their own because floats are rounded to TF32, wholly or in two halves, by an instruction
// that only Hopper has, and so are compiled for Ampere and for Hopper apart (cmake/QkvCuda.cmake).
#include "cuda/attention_mma_bias.cuh"
#include "cuda/attention_mma_received.cuh"

namespace qkv::cuda {

void exact_mma_bias(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                    const BiasResult& to, cudaStream_t stream) {
  launch_mma_bias<float>(job, grid, x, to, stream);
}

void exact_mma_diagonal(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                        int buckets, float* partial, cudaStream_t stream) {
  launch_mma_diagonal<float>(job, grid, x, buckets, partial, stream);
}

void exact_mma_received(const AttentionJob& job, const AttentionGrid& grid,
                        const RowStatistics& rows, float* to, cudaStream_t stream) {
  launch_mma_received<float>(job, grid, rows, to, stream);
}

void tf32_mma_received(const AttentionJob& job, const AttentionGrid& grid,
                       const RowStatistics& rows, float* to, cudaStream_t stream) {
  launch_mma_received<Tf32>(job, grid, rows, to, stream);
}

}  // namespace qkv::cuda
