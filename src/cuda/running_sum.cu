// Sums of chunks on the way from chunk to chunk, the triangle within one, and what is divided by
// sums at the end.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// A thread takes one column of one group through all chunks.
__global__ void running_sum_kernel(float* x, float* carry, std::int64_t groups, std::int64_t chunks,
                                   std::int64_t width, bool reverse) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < groups * width;
       at += step) {
    float* column = x + at / width * chunks * width + at % width;
    float sum = carry[at];
    for (std::int64_t n = 0; n < chunks; ++n) {
      float& element = column[(reverse ? chunks - 1 - n : n) * width];
      const float here = element;
      element = sum;
      sum += here;
    }
    carry[at] = sum;
  }
}

__global__ void keep_triangle_kernel(float* x, std::int64_t count, std::int64_t size, bool upper) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += step) {
    const std::int64_t column = at % size, row = at / size % size;
    if (upper ? column < row : column > row) x[at] = 0;
  }
}

template <class T>
__global__ void divide_rows_kernel(const T* x, std::int64_t apart, const float* by, T* y,
                                   std::int64_t count, std::int64_t width) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += step) {
    const std::int64_t row = at / width;
    y[at] = from_float<T>(to_float(x[row * apart + at % width]) / by[row]);
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::running_sum(Tensor& x, Tensor& carry, bool reverse) {
  if (x.numel() == 0) return;
  const std::int64_t groups = x.size(0), chunks = x.size(1), width = x.size(2);
  cuda::running_sum_kernel<<<cuda::blocks_for(groups * width), cuda::kThreads, 0, stream()>>>(
      cuda::pointer<float>(x), cuda::pointer<float>(carry), groups, chunks, width, reverse);
  check_launch("running sum");
}

void CudaBackend::divide_rows(const Tensor& x, const Tensor& by, Tensor& y) {
  if (y.numel() == 0) return;
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    cuda::divide_rows_kernel<<<cuda::blocks_for(y.numel()), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const T>(x), x.stride(0), cuda::pointer<const float>(by), cuda::pointer<T>(y),
        y.numel(), x.size(1));
  });
  check_launch("divide rows");
}

void CudaBackend::keep_triangle(Tensor& x, bool upper) {
  if (x.numel() == 0) return;
  cuda::keep_triangle_kernel<<<cuda::blocks_for(x.numel()), cuda::kThreads, 0, stream()>>>(
      cuda::pointer<float>(x), x.numel(), x.size(-1), upper);
  check_launch("triangle");
}

}  // namespace qkv
