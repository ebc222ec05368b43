// Positive random features of the softmax kernel: a block per row.
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"
#include "cuda/features.h"

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

// d = dy y and its sum, a block per row.
template <class T>
__global__ void feature_products_kernel(const T* y, const T* dy, float* d, float* totals,
                                        std::int64_t rows, std::int64_t features) {
  __shared__ float room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < features; i += kThreads) {
      const std::int64_t at = row * features + i;
      d[at] = to_float(y[at]) * to_float(dy[at]);
      total += d[at];
    }
    total = block_sum(total, room);
    if (threadIdx.x == 0) totals[row] = total;
  }
}

template <class T>
__global__ void feature_finish_kernel(const float* sums, const float* totals, float scale,
                                      const T* x, T* dx, std::int64_t count, std::int64_t size) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += step) {
    dx[at] = from_float<T>(sums[at] - scale * totals[at / size] * to_float(x[at]));
  }
}

// a [rows, K] times directions [F, D], or their transpose, in f32.
Tensor times_directions(CudaBackend& device, const Tensor& a, const Tensor& directions,
                        bool transposed) {
  const std::int64_t rows = a.numel() / a.size(-1), inner = a.size(-1);
  const std::int64_t outer = directions.size(transposed ? 0 : 1);
  const std::int64_t of_a[] = {0, inner, 1};
  const std::int64_t of_b[] = {0, directions.stride(transposed ? 1 : 0),
                               directions.stride(transposed ? 0 : 1)};
  MatmulProblem product;
  product.a = a.view({1, rows, inner}, of_a, 0);
  product.b = directions.view({1, inner, outer}, of_b, 0);
  product.y = Tensor::empty({1, rows, outer}, {DType::f32, a.device()});
  device.matmul(product);
  return product.y;
}

}  // namespace
}  // namespace cuda

void CudaBackend::softmax_features(const FeatureProblem& p) {
  if (p.y.numel() == 0) return;
  const std::int64_t groups = p.x.size(0), length = p.x.size(1), rows = groups * length;
  stream();
  if (cuda::features_fit(p.x, p.y.size(2))) {
    return cuda::fused_features(p, p.top.defined() ? scratch<float>(groups) : Tensor(), stream());
  }
  const Tensor projected = cuda::times_directions(*this, p.x, p.directions, true);
  const Tensor tops = scratch<float>(rows), offsets = scratch<float>(p.top.defined() ? rows : 1);
  const cuda::FeatureJob job{.rows = rows,
                             .length = length,
                             .size = p.x.size(2),
                             .features = p.y.size(2),
                             .half_scale = p.half_scale,
                             .share = 1 / std::sqrt(static_cast<float>(p.y.size(2))),
                             .projected = cuda::pointer<const float>(projected),
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

void CudaBackend::softmax_features_backward(const FeatureBackward& p) {
  if (p.dx.numel() == 0) return;
  stream();
  if (cuda::features_fit(p.x, p.y.size(2)) && cuda::is_aligned(p.dy.raw())) {
    return cuda::fused_features_backward(p, stream());
  }
  const std::int64_t rows = p.x.size(0) * p.x.size(1), features = p.y.size(2);
  const Tensor d = Tensor::empty(p.y.shape(), {DType::f32, device()});
  const Tensor totals = scratch<float>(rows);
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    cuda::feature_products_kernel<<<cuda::blocks_for(rows, 1), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const T>(p.y), cuda::pointer<const T>(p.dy), cuda::pointer<float>(d),
        cuda::pointer<float>(totals), rows, features);
    const Tensor sums = cuda::times_directions(*this, d, p.directions, false);
    cuda::feature_finish_kernel<<<cuda::blocks_for(p.dx.numel()), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const float>(sums), cuda::pointer<const float>(totals), p.scale,
        cuda::pointer<const T>(p.x), cuda::pointer<T>(p.dx), p.dx.numel(), p.x.size(2));
  });
  check_launch("softmax features");
}

}  // namespace qkv
