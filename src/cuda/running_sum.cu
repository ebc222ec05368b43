// Sums of chunks on the way from chunk to chunk, the triangle within one, and what is divided by
// sums at the end.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// A thread takes one column of one group through all chunks, and reads a few of them ahead.
constexpr int kAhead = 8;

template <class T>
__global__ void running_sum_kernel(const float* x, float* carry, T* y, std::int64_t groups,
                                   std::int64_t chunks, std::int64_t width, bool reverse) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < groups * width;
       at += step) {
    const std::int64_t column = at / width * chunks * width + at % width;
    float sum = carry[at];
    for (std::int64_t first = 0; first < chunks; first += kAhead) {
      const auto element = [&](int i) {
        return column + (reverse ? chunks - 1 - first - i : first + i) * width;
      };
      float here[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) here[i] = first + i < chunks ? x[element(i)] : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < chunks) y[element(i)] = from_float<T>(sum);
        sum += here[i];
      }
    }
    carry[at] = sum;
  }
}

// A warp takes a row.
__device__ std::int64_t first_row() {
  return std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
}
__device__ std::int64_t rows_apart() { return std::int64_t{gridDim.x} * (kThreads / 32); }

template <class T>
__global__ void keep_triangle_kernel(const float* x, T* y, std::int64_t rows, std::int64_t size,
                                     bool upper) {
  for (std::int64_t row = first_row(); row < rows; row += rows_apart()) {
    const std::int64_t diagonal = row % size;
    for (std::int64_t i = threadIdx.x % 32; i < size; i += 32) {
      const bool is_kept = upper ? i >= diagonal : i <= diagonal;
      y[row * size + i] = from_float<T>(is_kept ? x[row * size + i] : 0.0f);
    }
  }
}

template <class From, class To>
__global__ void divide_rows_kernel(const From* x, std::int64_t apart, const float* by, To* y,
                                   std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = first_row(); row < rows; row += rows_apart()) {
    const float divisor = by[row];
    for (std::int64_t i = threadIdx.x % 32; i < width; i += 32) {
      y[row * width + i] = from_float<To>(to_float(x[row * apart + i]) / divisor);
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) {
  if (x.numel() == 0) return;
  const std::int64_t groups = x.size(0), chunks = x.size(1), width = x.size(2);
  cuda::dispatch_device(y.dtype(), [&]<class T>() {
    cuda::running_sum_kernel<<<cuda::blocks_for(groups * width), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const float>(x), cuda::pointer<float>(carry), cuda::pointer<T>(y), groups,
        chunks, width, reverse);
  });
  check_launch("running sum");
}

void CudaBackend::divide_rows(const Tensor& x, const Tensor& by, Tensor& y) {
  if (y.numel() == 0) return;
  cuda::dispatch_device(x.dtype(), [&]<class From>() {
    cuda::dispatch_device(y.dtype(), [&]<class To>() {
      cuda::divide_rows_kernel<<<cuda::blocks_for(x.size(0), cuda::kThreads / 32), cuda::kThreads,
                                 0, stream()>>>(cuda::pointer<const From>(x), x.stride(0),
                                                cuda::pointer<const float>(by),
                                                cuda::pointer<To>(y), x.size(0), x.size(1));
    });
  });
  check_launch("divide rows");
}

void CudaBackend::keep_triangle(const Tensor& x, bool upper, Tensor& y) {
  if (x.numel() == 0) return;
  cuda::dispatch_device(y.dtype(), [&]<class T>() {
    const std::int64_t rows = x.size(0) * x.size(1);
    cuda::keep_triangle_kernel<<<cuda::blocks_for(rows, cuda::kThreads / 32), cuda::kThreads, 0,
                                 stream()>>>(cuda::pointer<const float>(x), cuda::pointer<T>(y),
                                             rows, x.size(-1), upper);
  });
  check_launch("triangle");
}

}  // namespace qkv
