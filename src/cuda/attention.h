// The parts of attention on CUDA. attention.cu puts a call into a job and picks kernels; the other
// attention files are those kernels.
#pragma once

#include <vector>

#include "cuda/attention_job.cuh"
#include "cuda/cuda_backend.h"

namespace qkv::cuda {

// How many tiles cover the longest sequence.
struct AttentionGrid {
  unsigned sequences = 0;
  std::int64_t longest_q = 0, longest_k = 0;

  unsigned row_tiles(int tile) const { return tiles(longest_q, tile); }
  unsigned key_tiles(int tile) const { return tiles(longest_k, tile); }
  static unsigned tiles(std::int64_t count, int tile) {
    return static_cast<unsigned>(std::max<std::int64_t>(1, (count + tile - 1) / tile));
  }
};

// What forward leaves per row, like lse, for the statistics of heads and keys.
struct RowStatistics {
  float* seen = nullptr;                   // visible keys
  float *top = nullptr, *share = nullptr;  // p = e^(s - top) share
  float* logit = nullptr;
  float *origin = nullptr, *mean = nullptr, *squares = nullptr;  // of scores: origin + mean
  bool moments = false;                             // whether somebody asks for mean and squares
  float *entropy = nullptr, *top_weight = nullptr;  // null when nobody asks; saturation does
  int* top_index = nullptr;
};

// What backward needs to know of a row, like lse.
struct BackwardRows {
  float *top = nullptr, *share = nullptr;          // p = e^(s - top) share
  float* base = nullptr;                           // dlse - do . out
  float *dentropy = nullptr, *expected = nullptr;  // null without a gradient of the entropy
};

void general_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                     const Rows& out, float* lse, const RowStatistics* rows, cudaStream_t stream);
// Head statistics from row statistics, and what each key received.
void head_statistics(const AttentionJob& job, const AttentionGrid& grid, const RowStatistics& rows,
                     const AttentionStatistics& wanted, cudaStream_t stream);
void received(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
              const RowStatistics& rows, float* to, cudaStream_t stream);

struct BackwardTensors {
  Rows dout, out, dq, dk, dv;
  const float *lse = nullptr, *dlse = nullptr, *dentropy = nullptr, *entropy = nullptr;
};
void prepare_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                      const BackwardTensors& tensors, const BackwardRows& rows,
                      cudaStream_t stream);
void general_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                      const BackwardTensors& tensors, const BackwardRows& rows,
                      cudaStream_t stream);
// dbias [B or 1, H or 1, Sq or 1, Sk or 1]: extents of 1 are sums.
struct BiasResult {
  float* data;
  int batch, heads;
  std::int64_t rows, keys;
};
struct MmaBackward;
// Gradients of biases and sinks. Of a call that `by_mma` has served, its kernels make those that
// are many products.
void bias_backward(CudaBackend& backend, const AttentionJob& job, const AttentionGrid& grid,
                   DType dtype, const BackwardTensors& tensors, const BackwardRows& rows,
                   const AttentionBackward& wanted, const MmaBackward* by_mma);
void weights(const AttentionJob& job, DType dtype, const AttentionWeights& wanted,
             const std::int64_t* heads, const std::int64_t* rows, cudaStream_t stream);

inline Rows rows_of(const Tensor& x) {
  return {x.raw(), x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}
// Whether rows begin at multiples of 16 bytes, with their elements side by side; so does what is
// not there.
inline bool lies_in_vectors(const Tensor& x) {
  if (!x.defined()) return true;
  const std::int64_t each = 16 / static_cast<std::int64_t>(size_of(x.dtype()));
  return x.stride(3) == 1 && x.stride(2) % each == 0 && x.stride(1) % each == 0 &&
         x.stride(0) % each == 0 && is_aligned(x.raw());
}
// More shared memory than every kernel gets.
inline void allow_shared(const void* kernel, std::size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "attention");
}

}  // namespace qkv::cuda
