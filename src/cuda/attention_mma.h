// Attention by the matrix instructions that every GPU since Ampere has, with all that the contract
// does to pairs: of bf16, f16, and f32 as three products of its halves; and of f32 for calls that
// permit what is multiplied to be rounded to TF32, without any of it.
#pragma once

#include <string>

#include "core/attention_problem.h"
#include "cuda/attention.h"
#include "cuda/attention_far_sums.h"

namespace qkv::cuda {

// Empty when these kernels can run it, else the reason.
std::string why_not_mma(const AttentionProblem& problem, const AttentionResults& results);
std::string why_not_mma(const AttentionProblem& problem, const AttentionBackward& tensors);

// What is multiplied. f32 is rounded to TF32 only where a call permits it and has nothing else.
struct MmaElements {
  DType dtype;
  bool tf32;

  bool exact_floats() const { return dtype == DType::f32 && !tf32; }
};
MmaElements mma_elements(const AttentionProblem& problem);

struct MmaForward {
  Rows out;
  float* lse;
  bool watched;
  RowStatistics rows;  // if scores are watched: what they tell, as general_forward leaves it
};
void mma_forward(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                 const MmaForward& to, cudaStream_t stream);
// The parts of it that are for floats: which are not rounded, and which are.
void exact_mma_forward(const AttentionJob& job, const AttentionGrid& grid, const MmaForward& to,
                       cudaStream_t stream);
void tf32_mma_forward(const AttentionJob& job, const AttentionGrid& grid, const MmaForward& to,
                      cudaStream_t stream);
// What each key receives, as `received`, of such rows.
void mma_received(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                  const RowStatistics& rows, float* to, cudaStream_t stream);
void exact_mma_received(const AttentionJob& job, const AttentionGrid& grid,
                        const RowStatistics& rows, float* to, cudaStream_t stream);
void tf32_mma_received(const AttentionJob& job, const AttentionGrid& grid,
                       const RowStatistics& rows, float* to, cudaStream_t stream);

struct MmaBackward {
  BackwardTensors tensors;
  BackwardRows rows;  // written: what gradients of sinks need, too
  float* shift;       // like lse, for the time of the call; of exact floats rows.top
  // Written: not 0 when inputs hold what products cannot be trusted with. The gradients are worth
  // nothing then, and the general kernels have to make them.
  std::uint32_t* failed;
  FarSums far{};  // what mma_diagonal_backward leaves out
};
// What is known of rows, `x.rows` alone: the first step of mma_backward.
void mma_rows(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
              const MmaBackward& x, cudaStream_t stream);
void mma_backward(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                  const MmaBackward& x, cudaStream_t stream);
void exact_mma_backward(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                        cudaStream_t stream);
void tf32_mma_backward(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                       cudaStream_t stream);

// Gradients of a bias tensor with all its rows and keys, and of a table or slopes: sums by bucket
// of 64 queries each, [sequence][head][tile][bucket], without what x.far holds. After mma_backward.
inline constexpr int kMostMmaBuckets = 64;
void mma_bias_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                       const MmaBackward& x, const BiasResult& to, cudaStream_t stream);
void mma_diagonal_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                           const MmaBackward& x, int buckets, float* partial, cudaStream_t stream);
void exact_mma_bias(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                    const BiasResult& to, cudaStream_t stream);
void exact_mma_diagonal(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                        int buckets, float* partial, cudaStream_t stream);

// Shared memory of a block, for heads of this size.
std::int64_t mma_forward_bytes(MmaElements elements, std::int64_t size);
std::int64_t mma_received_bytes(MmaElements elements, std::int64_t size);
std::int64_t mma_backward_bytes(MmaElements elements, std::int64_t size);

}  // namespace qkv::cuda
