// Turning pairs by angles.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

struct RotaryJob {
  std::int64_t heads, length, width, half, count;  // count: pairs, and what is passed on
  std::int64_t x[4], y[4];                         // strides
  std::int64_t angles_by_batch;                    // 0: one table for all
  bool interleaved;
  float sign;  // -1 turns back
  const float *cos, *sin;
};

// A thread turns one pair; what does not turn (beyond 2 half) is copied.
template <class T>
__global__ void rotary_kernel(RotaryJob job, const T* x, T* y) {
  const std::int64_t per_row = job.half + (job.width - 2 * job.half);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < job.count;
       at += step) {
    const std::int64_t i = at % per_row, row = at / per_row;
    const std::int64_t s = row % job.length, h = row / job.length % job.heads;
    const std::int64_t b = row / job.length / job.heads;
    const T* from = x + b * job.x[0] + h * job.x[1] + s * job.x[2];
    T* to = y + b * job.y[0] + h * job.y[1] + s * job.y[2];
    if (i >= job.half) {
      const std::int64_t element = i + job.half;
      to[element * job.y[3]] = from[element * job.x[3]];
      continue;
    }
    const std::int64_t angle = b * job.angles_by_batch + s * job.half + i;
    const float c = job.cos[angle], t = job.sign * job.sin[angle];
    const std::int64_t first = job.interleaved ? 2 * i : i;
    const std::int64_t second = job.interleaved ? 2 * i + 1 : i + job.half;
    const float u = to_float(from[first * job.x[3]]), v = to_float(from[second * job.x[3]]);
    to[first * job.y[3]] = from_float<T>(u * c - v * t);
    to[second * job.y[3]] = from_float<T>(v * c + u * t);
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::rotary(const RotaryProblem& p) {
  cuda::RotaryJob job{};
  job.heads = p.x.size(1);
  job.length = p.x.size(2);
  job.width = p.x.size(3);
  job.half = p.cos.size(2);
  job.count = p.x.size(0) * job.heads * job.length * (job.width - job.half);
  for (int axis = 0; axis < 4; ++axis) {
    job.x[axis] = p.x.stride(axis);
    job.y[axis] = p.y.stride(axis);
  }
  job.angles_by_batch = p.cos.size(0) > 1 ? job.length * job.half : 0;
  job.interleaved = p.interleaved;
  job.sign = p.inverse ? -1.0f : 1.0f;
  job.cos = cuda::pointer<const float>(p.cos);
  job.sin = cuda::pointer<const float>(p.sin);
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    cuda::rotary_kernel<<<cuda::blocks_for(job.count), cuda::kThreads, 0, stream()>>>(
        job, cuda::pointer<const T>(p.x), cuda::pointer<T>(p.y));
  });
  check_launch("rotary");
}

}  // namespace qkv
