// softmax over the last axis and its gradient: a block per row.
#include <limits>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

template <class T>
__global__ void softmax_kernel(const T* x, T* y, std::int64_t rows, std::int64_t width) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * width;
    T* to = y + row * width;
    float top = -INFINITY;
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      top = fmaxf(top, to_float(from[i]));
    }
    top = block_max(top, room);
    const bool sees_nothing = top == -INFINITY;  // or NaN only, which stays
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      const float value = to_float(from[i]);
      total += sees_nothing && !isnan(value) ? 0.0f : expf(value - top);
    }
    const float share = 1 / block_sum(total, room);
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      const float value = to_float(from[i]);
      const bool hidden = sees_nothing && share == INFINITY;
      to[i] = from_float<T>(hidden ? 0.0f : expf(value - top) * share);
    }
  }
}

template <class T>
__global__ void softmax_backward_kernel(const T* y, const T* dy, T* dx, std::int64_t rows,
                                        std::int64_t width) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t at = row * width;
    float dot = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      dot += to_float(y[at + i]) * to_float(dy[at + i]);
    }
    dot = block_sum(dot, room);
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      dx[at + i] = from_float<T>(to_float(y[at + i]) * (to_float(dy[at + i]) - dot));
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::softmax(const Tensor& x, Tensor& y) {
  const std::int64_t width = x.size(-1), rows = x.numel() / width;
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    cuda::softmax_kernel<<<cuda::blocks_for(rows, 1), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const T>(x), cuda::pointer<T>(y), rows, width);
  });
  check_launch("softmax");
}

void CudaBackend::softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  const std::int64_t width = y.size(-1), rows = y.numel() / width;
  cuda::dispatch_device(y.dtype(), [&]<class T>() {
    cuda::softmax_backward_kernel<<<cuda::blocks_for(rows, 1), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const T>(y), cuda::pointer<const T>(dy), cuda::pointer<T>(dx), rows, width);
  });
  check_launch("softmax backward");
}

}  // namespace qkv
