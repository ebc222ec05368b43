// Attention by the matrix instructions that every GPU since Ampere has: of bf16 and f16 with all
// that the contract does to pairs, and of f32 for calls that permit what is multiplied to be
// rounded to TF32.
#pragma once

#include <string>

#include "core/attention_problem.h"
#include "cuda/attention.h"

namespace qkv::cuda {

// Empty when these kernels can run it, else the reason.
std::string why_not_mma(const AttentionProblem& problem, const AttentionResults& results);
std::string why_not_mma(const AttentionProblem& problem, const AttentionBackward& tensors);

// `rows`, if not null, gets what scores tell of rows, as general_forward leaves it.
void mma_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype, const Rows& out,
                 float* lse, const RowStatistics* rows, cudaStream_t stream);
// What each key receives, as `received`, of such rows.
void mma_received(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                  const RowStatistics& rows, float* to, cudaStream_t stream);

struct MmaBackward {
  BackwardTensors tensors;
  BackwardRows rows;  // written: what gradients of sinks need, too
  float* shift;       // like lse, for the time of the call
  // Written: not 0 when inputs hold what products cannot be trusted with. The gradients are worth
  // nothing then, and the general kernels have to make them.
  std::uint32_t* failed;
};
// What is known of rows, `x.rows` alone: the first step of mma_backward.
void mma_rows(const AttentionJob& job, const AttentionGrid& grid, DType dtype, const MmaBackward& x,
              cudaStream_t stream);
void mma_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                  const MmaBackward& x, cudaStream_t stream);

// Gradients of a bias tensor with all its rows and keys, and of a table or slopes: sums by bucket
// of 64 queries each, [sequence][head][tile][bucket]. Of 16 bits only, after mma_backward.
inline constexpr int kMostMmaBuckets = 64;
void mma_bias_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                       const MmaBackward& x, const BiasResult& to, cudaStream_t stream);
void mma_diagonal_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                           const MmaBackward& x, int buckets, float* partial, cudaStream_t stream);

// Shared memory of a block, for heads of this size.
std::int64_t mma_forward_bytes(DType dtype, std::int64_t size);
std::int64_t mma_received_bytes(DType dtype, std::int64_t size);
std::int64_t mma_backward_bytes(DType dtype, std::int64_t size);

}  // namespace qkv::cuda
