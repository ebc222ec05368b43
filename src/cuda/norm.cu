// Layer norm and RMS norm with an optional residual: a warp per row where the row fits into its
// registers, else a block per row.
#include "cuda/norm.cuh"

#include "cuda/cuda_backend.h"

namespace qkv {
namespace cuda {
namespace {

template <class T>
struct NormRows {
  const T *x, *residual;  // residual may be null
  T *sum, *y;
};

template <class T, int kPacks>
__global__ void norm_warp_kernel(NormJob job, NormRows<T> rows) {
  using Row = WarpRow<T, kPacks>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kNormWarps + threadIdx.x / 32;
  if (row >= job.rows) return;
  const std::int64_t at = row * job.width, width = job.width;
  float x[Row::kCount];
  Row::load(rows.x + at, width, x);
  if (rows.residual != nullptr) {
    if (job.drops) {
      Row::drop(job.dropping, at, width, x);
#pragma unroll
      for (float& value : x) value = to_float(from_float<T>(value));
    }
    float residual[Row::kCount];
    Row::load(rows.residual + at, width, residual);
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) x[i] = to_float(from_float<T>(x[i] + residual[i]));
    Row::store(x, width, rows.sum + at);
  }
  float total = 0, squares = 0;
#pragma unroll
  for (const float value : x) total += value;
  const float mean = job.centered ? warp_sum(total) / static_cast<float>(width) : 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (Row::at(p) >= width) continue;
#pragma unroll
    for (int k = 0; k < Row::kEach; ++k) {
      float& value = x[p * Row::kEach + k];
      value -= mean;
      squares += value * value;
    }
  }
  const float variance = warp_sum(squares) / static_cast<float>(width);
  const float rstd = 1 / sqrtf(variance + job.eps);
  float column[Row::kCount];
  Row::load(job.weight, width, column);
#pragma unroll
  for (int i = 0; i < Row::kCount; ++i) x[i] = x[i] * rstd * column[i];
  Row::load(job.bias, width, column);
#pragma unroll
  for (int i = 0; i < Row::kCount; ++i) x[i] += column[i];
  Row::store(x, width, rows.y + at);
  if (threadIdx.x % 32 != 0) return;
  if (job.mean != nullptr) job.mean[row] = mean;
  if (job.rstd != nullptr) job.rstd[row] = rstd;
}

template <class T>
__global__ void norm_block_kernel(NormJob job, NormRows<T> rows) {
  __shared__ float room[kNormWarps];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const std::int64_t at = row * job.width;
    const T* source = rows.x + at;
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      float value = to_float(source[i]);
      if (rows.residual != nullptr) {
        if (job.drops) {
          value = to_float(from_float<T>(dropped(value, job.dropping.factor_of(at + i))));
        }
        const T rounded = from_float<T>(value + to_float(rows.residual[at + i]));
        rows.sum[at + i] = rounded;
        value = to_float(rounded);
      }
      total += value;
    }
    if (rows.residual != nullptr) source = rows.sum + at;  // each thread reads what it wrote
    const float mean = job.centered ? block_sum(total, room) / static_cast<float>(job.width) : 0;
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float d = to_float(source[i]) - mean;
      squares += d * d;
    }
    const float variance = block_sum(squares, room) / static_cast<float>(job.width);
    const float rstd = 1 / sqrtf(variance + job.eps);
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float normed = (to_float(source[i]) - mean) * rstd;
      rows.y[at + i] = from_float<T>(normed * job.weight[i] + job.bias[i]);
    }
    if (threadIdx.x == 0) {
      if (job.mean != nullptr) job.mean[row] = mean;
      if (job.rstd != nullptr) job.rstd[row] = rstd;
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::norm(const NormProblem& p) {
  cuda::NormJob job;
  job.weight = cuda::column(p.weight, 1, p.weight_offset);
  job.bias = cuda::column(p.bias, 0);
  job.width = p.x.size(-1);
  job.rows = p.x.numel() / job.width;
  job.eps = p.eps;
  job.centered = p.centered;
  job.drops = p.dropout > 0;
  if (job.drops) job.dropping = cuda::Dropping(p.dropout, p.seed);
  job.mean = cuda::pointer<float>(p.mean);
  job.rstd = cuda::pointer<float>(p.rstd);
  const cudaStream_t queue = stream();
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    const cuda::NormRows<T> rows{cuda::pointer<const T>(p.x), cuda::pointer<const T>(p.residual),
                                 cuda::pointer<T>(p.sum), cuda::pointer<T>(p.y)};
    const bool aligned = cuda::is_aligned(rows.x) && cuda::is_aligned(rows.residual) &&
                         cuda::is_aligned(rows.sum) && cuda::is_aligned(rows.y);
    const bool done = cuda::dispatch_warp_rows<T>(job.width, aligned, [&]<int kPacks>() {
      cuda::norm_warp_kernel<T, kPacks>
          <<<cuda::blocks_for(job.rows, cuda::kNormWarps), cuda::kThreads, 0, queue>>>(job, rows);
    });
    if (done) return;
    cuda::norm_block_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0, queue>>>(job, rows);
  });
  check_launch("norm");
}

}  // namespace qkv
