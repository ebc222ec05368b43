#include "cuda/activation.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"
#include "cuda/matmul.h"

namespace qkv::cuda {
namespace {

template <Activation kFunction, class B, class T>
__global__ void finish_kernel(const float* sums, const B* bias, T* y, std::int64_t count,
                              std::int64_t width) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float added = bias != nullptr ? to_float(bias[i % width]) : 0.0f;
    y[i] = from_float<T>(apply<kFunction>(sums[i] + added));
  }
}

}  // namespace

void finish_product(const Tensor& sums, const Tensor& bias, Activation activation, Tensor& y,
                    cudaStream_t stream) {
  const std::int64_t count = y.numel();
  dispatch_device(bias.defined() ? bias.dtype() : DType::f32, [&]<class B>() {
    dispatch_device(y.dtype(), [&]<class T>() {
      dispatch_activation(activation, [&]<Activation kFunction>() {
        finish_kernel<kFunction><<<blocks_for(count), kThreads, 0, stream>>>(
            pointer<const float>(sums), pointer<const B>(bias), pointer<T>(y), count, y.size(-1));
      });
    });
  });
  check_launch("matmul");
}

}  // namespace qkv::cuda
