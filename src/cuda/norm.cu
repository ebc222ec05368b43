// Layer norm and RMS norm with an optional residual, and their gradients: a block per row.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// A weight or bias of any floating dtype, absent = constant.
struct Column {
  const void* values = nullptr;
  DType dtype = DType::f32;
  float constant = 0, offset = 0;

  __device__ float operator[](std::int64_t i) const {
    if (values == nullptr) return constant;
    switch (dtype) {
      case DType::bf16: return offset + to_float(static_cast<const device_bf16*>(values)[i]);
      case DType::f16: return offset + to_float(static_cast<const device_f16*>(values)[i]);
      default: return offset + static_cast<const float*>(values)[i];
    }
  }
};
Column column(const Tensor& x, float constant, float offset = 0) {
  if (!x.defined()) return {nullptr, DType::f32, constant, 0};
  return {x.raw(), x.dtype(), 0, offset};
}

struct NormJob {
  Column weight, bias;
  std::int64_t rows = 0, width = 0;
  float eps = 0;
  bool centered = true;
  float *mean = nullptr, *rstd = nullptr;
};

template <class T>
__global__ void norm_kernel(NormJob job, const T* x, const T* residual, T* sum, T* y) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const std::int64_t at = row * job.width;
    const T* source = x + at;
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      float value = to_float(source[i]);
      if (residual != nullptr) {
        const T rounded = from_float<T>(value + to_float(residual[at + i]));
        sum[at + i] = rounded;
        value = to_float(rounded);
      }
      total += value;
    }
    if (residual != nullptr) source = sum + at;  // each thread reads what it wrote
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
      y[at + i] = from_float<T>(normed * job.weight[i] + job.bias[i]);
    }
    if (threadIdx.x == 0) {
      if (job.mean != nullptr) job.mean[row] = mean;
      if (job.rstd != nullptr) job.rstd[row] = rstd;
    }
  }
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dsum, with g = dy weight.
template <class T>
__global__ void norm_backward_kernel(NormJob job, const T* x, const T* dy, const T* dsum, T* dx) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const std::int64_t at = row * job.width;
    const float mean = job.mean != nullptr ? job.mean[row] : 0, rstd = job.rstd[row];
    float total = 0, dot = 0;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float g = to_float(dy[at + i]) * job.weight[i];
      total += g;
      dot += g * (to_float(x[at + i]) - mean) * rstd;
    }
    const float count = static_cast<float>(job.width);
    total = job.centered ? block_sum(total, room) / count : 0;
    dot = block_sum(dot, room) / count;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float g = to_float(dy[at + i]) * job.weight[i];
      const float xhat = (to_float(x[at + i]) - mean) * rstd;
      const float more = dsum != nullptr ? to_float(dsum[at + i]) : 0;
      dx[at + i] = from_float<T>(rstd * (g - total - xhat * dot) + more);
    }
  }
}

// Columns of dweight and dbias over a chunk of rows: sums[chunk][2][width].
template <class T>
__global__ void norm_parameters_kernel(NormJob job, const T* x, const T* dy,
                                       std::int64_t rows_per_chunk, float* sums) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= job.width) return;
  const std::int64_t begin = blockIdx.y * rows_per_chunk;
  const std::int64_t end = min(job.rows, begin + rows_per_chunk);
  float dweight = 0, dbias = 0;
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    const float mean = job.mean != nullptr ? job.mean[row] : 0;
    const float d = to_float(dy[row * job.width + i]);
    dweight += d * (to_float(x[row * job.width + i]) - mean) * job.rstd[row];
    dbias += d;
  }
  sums[(std::int64_t{blockIdx.y} * 2) * job.width + i] = dweight;
  sums[(std::int64_t{blockIdx.y} * 2 + 1) * job.width + i] = dbias;
}
__global__ void add_parameters_kernel(const float* sums, std::int64_t chunks, std::int64_t width,
                                      float* dweight, float* dbias) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= width) return;
  double w = 0, b = 0;
  for (std::int64_t c = 0; c < chunks; ++c) {
    w += sums[2 * c * width + i];
    b += sums[(2 * c + 1) * width + i];
  }
  if (dweight != nullptr) dweight[i] = static_cast<float>(w);
  if (dbias != nullptr) dbias[i] = static_cast<float>(b);
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
  job.mean = cuda::pointer<float>(p.mean);
  job.rstd = cuda::pointer<float>(p.rstd);
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    cuda::norm_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0, stream()>>>(
        job, cuda::pointer<const T>(p.x), cuda::pointer<const T>(p.residual),
        cuda::pointer<T>(p.sum), cuda::pointer<T>(p.y));
  });
  check_launch("norm");
}

void CudaBackend::norm_backward(const NormBackward& p) {
  cuda::NormJob job;
  job.weight = cuda::column(p.weight, 1, p.weight_offset);
  job.width = p.x.size(-1);
  job.rows = p.x.numel() / job.width;
  job.centered = p.centered;
  job.mean = p.centered ? cuda::pointer<float>(p.mean) : nullptr;
  job.rstd = cuda::pointer<float>(p.rstd);
  const std::int64_t columns = (job.width + cuda::kThreads - 1) / cuda::kThreads;
  const std::int64_t chunks =
      std::clamp<std::int64_t>(std::min(job.rows / 16, 512 / columns), 1, 512);
  const std::int64_t per_chunk = (job.rows + chunks - 1) / chunks;
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    const auto* x = cuda::pointer<const T>(p.x);
    const auto* dy = cuda::pointer<const T>(p.dy);
    cuda::norm_backward_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0, stream()>>>(
        job, x, dy, cuda::pointer<const T>(p.dsum), cuda::pointer<T>(p.dx));
    if (!p.dweight.defined() && !p.dbias.defined()) return;
    const Tensor sums = scratch<float>(chunks * 2 * job.width);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(chunks));
    cuda::norm_parameters_kernel<<<grid, cuda::kThreads, 0, stream()>>>(
        job, x, dy, per_chunk, static_cast<float*>(sums.raw()));
    cuda::add_parameters_kernel<<<static_cast<unsigned>(columns), cuda::kThreads, 0, stream()>>>(
        static_cast<const float*>(sums.raw()), chunks, job.width, cuda::pointer<float>(p.dweight),
        cuda::pointer<float>(p.dbias));
  });
  check_launch("norm backward");
}

}  // namespace qkv
