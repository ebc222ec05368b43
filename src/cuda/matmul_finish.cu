#include "cuda/activation.cuh"
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"
#include "cuda/matmul.h"

namespace qkv::cuda {
namespace {

template <class B, class T>
struct FinishJob {
  const float* sums;  // [rows, width]
  const B* bias;
  T* y;
  std::int64_t apart;  // from row to row of y
  std::int64_t count, width;
};

template <Activation kFunction, class B, class T>
__global__ void finish_kernel(FinishJob<B, T> job) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.count;
       i += step) {
    const std::int64_t row = i / job.width, column = i - row * job.width;
    const float sum = job.sums[i] + (job.bias != nullptr ? to_float(job.bias[column]) : 0.0f);
    job.y[row * job.apart + column] = from_float<T>(apply<kFunction>(sum));
  }
}

}  // namespace

void finish_product(const Tensor& sums, const MatmulProblem& p, cudaStream_t stream) {
  dispatch_device(p.bias.defined() ? p.bias.dtype() : DType::f32, [&]<class B>() {
    dispatch_device(p.y.dtype(), [&]<class T>() {
      // A result of several matrices is contiguous; of one, its rows may stand apart.
      const bool one = p.y.size(0) == 1;
      const FinishJob<B, T> job{pointer<const float>(sums),
                                pointer<const B>(p.bias),
                                pointer<T>(p.y),
                                one ? p.y.stride(1) : p.y.size(2),
                                p.y.numel(),
                                p.y.size(2)};
      dispatch_activation(p.activation, [&]<Activation kFunction>() {
        finish_kernel<kFunction><<<blocks_for(job.count), kThreads, 0, stream>>>(job);
      });
    });
  });
  check_launch("matmul");
}

}  // namespace qkv::cuda
