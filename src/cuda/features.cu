// Positive random features of the softmax kernel: a block per row.
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

struct FeatureJob {
  std::int64_t rows, length, size, features;
  float half_scale, share;
  const float* projected;
  float *tops, *offsets;  // [rows]; offsets is null where rows stand for themselves
};

// The largest exponent of each row, and |x|^2 half_scale of it.
template <class T>
__global__ void feature_tops_kernel(FeatureJob job, const T* x) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const float* from = job.projected + row * job.features;
    float top = -INFINITY;
    for (std::int64_t i = threadIdx.x; i < job.features; i += kThreads) top = fmaxf(top, from[i]);
    top = block_max(top, room);
    if (job.offsets != nullptr) {
      float squares = 0;
      for (std::int64_t i = threadIdx.x; i < job.size; i += kThreads) {
        const float value = to_float(x[row * job.size + i]);
        squares += value * value;
      }
      squares = block_sum(squares, room);
      if (threadIdx.x == 0) job.offsets[row] = job.half_scale * squares;
    }
    if (threadIdx.x == 0) job.tops[row] = top;
  }
}

// A block per group: the largest exponent of all its rows, and what each row is relative to.
__global__ void group_tops_kernel(FeatureJob job, float* tops, float* decay) {
  __shared__ float room[kThreads / 32];
  const std::int64_t first = blockIdx.x * job.length;
  const float before = tops[blockIdx.x];
  float top = before;
  for (std::int64_t i = threadIdx.x; i < job.length; i += kThreads) {
    top = fmaxf(top, job.tops[first + i] - job.offsets[first + i]);
  }
  top = block_max(top, room);
  for (std::int64_t i = threadIdx.x; i < job.length; i += kThreads) {
    job.tops[first + i] = job.offsets[first + i] + top;
  }
  __syncthreads();  // all have read `before`
  if (threadIdx.x == 0) {
    tops[blockIdx.x] = top;
    decay[blockIdx.x] = isinf(before) ? 0.0f : expf(before - top);
  }
}

template <class T>
__global__ void feature_exp_kernel(FeatureJob job, T* y) {
  const std::int64_t count = job.rows * job.features;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += step) {
    y[at] = from_float<T>(expf(job.projected[at] - job.tops[at / job.features]) * job.share);
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::softmax_features(const FeatureProblem& p) {
  if (p.y.numel() == 0) return;
  const std::int64_t groups = p.x.size(0), length = p.x.size(1), rows = groups * length;
  const Tensor tops = scratch<float>(rows), offsets = scratch<float>(p.top.defined() ? rows : 1);
  const cuda::FeatureJob job{.rows = rows,
                             .length = length,
                             .size = p.x.size(2),
                             .features = p.y.size(2),
                             .half_scale = p.half_scale,
                             .share = 1 / std::sqrt(static_cast<float>(p.y.size(2))),
                             .projected = cuda::pointer<const float>(p.projected),
                             .tops = cuda::pointer<float>(tops),
                             .offsets = p.top.defined() ? cuda::pointer<float>(offsets) : nullptr};
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    cuda::feature_tops_kernel<<<cuda::blocks_for(rows, 1), cuda::kThreads, 0, stream()>>>(
        job, cuda::pointer<const T>(p.x));
    if (p.top.defined()) {
      cuda::group_tops_kernel<<<static_cast<unsigned>(groups), cuda::kThreads, 0, stream()>>>(
          job, cuda::pointer<float>(p.top), cuda::pointer<float>(p.decay));
    }
    cuda::
        feature_exp_kernel<<<cuda::blocks_for(rows * job.features), cuda::kThreads, 0, stream()>>>(
            job, cuda::pointer<T>(p.y));
  });
  check_launch("softmax features");
}

}  // namespace qkv
