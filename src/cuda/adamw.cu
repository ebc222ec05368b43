// A step of AdamW.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

struct AdamWJob {
  const float* gradient;
  float *m, *v, *master;
  std::int64_t count;
  float lr, beta1, beta2, eps, keep, unbias, gradient_scale;  // lr is already unbiased
};

template <class T>
__global__ void adamw_kernel(AdamWJob job, T* parameter) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.count;
       i += step) {
    const float g = job.gradient[i] * job.gradient_scale;
    const float mean = fmaf(job.beta1, job.m[i], (1 - job.beta1) * g);
    const float square = fmaf(job.beta2, job.v[i], (1 - job.beta2) * g * g);
    job.m[i] = mean;
    job.v[i] = square;
    const float size = sqrtf(square * job.unbias) + job.eps;
    const float before = job.master != nullptr ? job.master[i] : to_float(parameter[i]);
    const float w = before * job.keep - job.lr * mean / size;
    if (job.master != nullptr) job.master[i] = w;
    parameter[i] = from_float<T>(w);
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::adamw(const AdamWProblem& p) {
  cuda::AdamWJob job{};
  job.gradient = cuda::pointer<const float>(p.gradient);
  job.m = cuda::pointer<float>(p.m);
  job.v = cuda::pointer<float>(p.v);
  job.master = cuda::pointer<float>(p.master);
  job.count = p.parameter.numel();
  job.lr = p.lr / p.correction1;
  job.beta1 = p.beta1;
  job.beta2 = p.beta2;
  job.eps = p.eps;
  job.keep = 1 - p.lr * p.weight_decay;
  job.unbias = 1 / p.correction2;
  job.gradient_scale = p.gradient_scale;
  if (job.count == 0) return;
  cuda::dispatch_device(p.parameter.dtype(), [&]<class T>() {
    cuda::adamw_kernel<<<cuda::blocks_for(job.count), cuda::kThreads, 0, stream()>>>(
        job, cuda::pointer<T>(p.parameter));
  });
  check_launch("adamw");
}

}  // namespace qkv
