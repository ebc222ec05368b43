// -log softmax(logits)[target]: a block per row; backward makes the probabilities again from lse.
#include <limits>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

struct LossJob {
  const std::int64_t* targets;
  std::int64_t rows, classes, ignore_index;
  float label_smoothing, z_loss;
  float* lse;
};

// A target that is none of the classes cannot be an Error without waiting for the device: its loss
// is NaN, and so is every sum it enters.
template <class T>
__global__ void cross_entropy_kernel(LossJob job, const T* logits, double* losses) {
  __shared__ float room[kThreads / 32];
  __shared__ double wide_room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const T* x = logits + row * job.classes;
    // Maximum and sum in one pass: a logit above the maximum so far scales what was summed.
    float top = -INFINITY, total = 0, plain = 0;
    for (std::int64_t i = threadIdx.x; i < job.classes; i += kThreads) {
      const float value = to_float(x[i]);
      plain += value;
      if (value > top) {
        total = total * expf(top - value) + 1;
        top = value;
      } else if (value != -INFINITY) {
        total += expf(value - top);
      }
    }
    const float all = block_max(top, room);
    total = block_sum(top == -INFINITY && !isnan(total) ? 0.0f : total * expf(top - all), room);
    const double lse = double{all} + log(double{total});
    const double sum = job.label_smoothing > 0 ? block_sum(double{plain}, wide_room) : 0;
    if (threadIdx.x != 0) continue;
    job.lse[row] = static_cast<float>(lse);
    const std::int64_t target = job.targets[row];
    if (target == job.ignore_index) {
      losses[row] = 0;
    } else if (target < 0 || target >= job.classes) {
      losses[row] = nan("");
    } else {
      const double hit = lse - to_float(x[target]), drift = job.z_loss * lse * lse;
      const double even = job.label_smoothing > 0 ? lse - sum / job.classes : 0;
      losses[row] = (1 - double{job.label_smoothing}) * hit + job.label_smoothing * even + drift;
    }
  }
}

__global__ void mean_loss_kernel(LossJob job, const double* losses, float* loss, float* count) {
  __shared__ double room[kThreads / 32];
  double total = 0, counted = 0;
  for (std::int64_t row = threadIdx.x; row < job.rows; row += kThreads) {
    if (job.targets[row] == job.ignore_index) continue;
    total += losses[row];
    counted += 1;
  }
  total = block_sum(total, room);
  counted = block_sum(counted, room);
  if (threadIdx.x != 0) return;
  *loss = static_cast<float>(total / counted);
  *count = static_cast<float>(counted);
}

// dx = d (p (1 + 2 z lse) - wanted), where wanted is spread evenly but for the target.
template <class T>
__global__ void cross_entropy_backward_kernel(LossJob job, const T* logits, const float* dloss,
                                              const float* count, T* dlogits) {
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const T* x = logits + row * job.classes;
    T* dx = dlogits + row * job.classes;
    const std::int64_t target = job.targets[row];
    const bool counts = target != job.ignore_index;
    const float d = counts ? *dloss / *count : 0.0f, lse = job.lse[row];
    const float slope = d * (1 + 2 * job.z_loss * lse);
    const float even = d * job.label_smoothing / static_cast<float>(job.classes);
    for (std::int64_t i = threadIdx.x; i < job.classes; i += kThreads) {
      if (!counts) {
        dx[i] = from_float<T>(0.0f);
        continue;
      }
      float gradient = expf(to_float(x[i]) - lse) * slope - even;
      if (i == target) gradient -= d * (1 - job.label_smoothing);
      dx[i] = from_float<T>(gradient);
    }
  }
}

LossJob job_of(const CrossEntropyProblem& p) {
  const std::int64_t classes = p.logits.size(-1);
  return {pointer<const std::int64_t>(p.targets),
          p.logits.numel() / classes,
          classes,
          p.ignore_index,
          p.label_smoothing,
          p.z_loss,
          pointer<float>(p.lse)};
}

}  // namespace
}  // namespace cuda

void CudaBackend::cross_entropy(const CrossEntropyProblem& p) {
  const cuda::LossJob job = cuda::job_of(p);
  const Tensor losses = scratch<double>(job.rows);
  auto* room = static_cast<double*>(losses.raw());
  cuda::dispatch_device(p.logits.dtype(), [&]<class T>() {
    cuda::cross_entropy_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0, stream()>>>(
        job, cuda::pointer<const T>(p.logits), room);
  });
  cuda::mean_loss_kernel<<<1, cuda::kThreads, 0, stream()>>>(
      job, room, cuda::pointer<float>(p.loss), cuda::pointer<float>(p.count));
  check_launch("cross entropy");
}

void CudaBackend::cross_entropy_backward(const CrossEntropyBackward& b) {
  const CrossEntropyProblem& p = *b.forward;
  const cuda::LossJob job = cuda::job_of(p);
  if (job.rows == 0) return;
  cuda::dispatch_device(p.logits.dtype(), [&]<class T>() {
    cuda::cross_entropy_backward_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0,
                                          stream()>>>(
        job, cuda::pointer<const T>(p.logits), cuda::pointer<const float>(b.dloss),
        cuda::pointer<const float>(p.count), cuda::pointer<T>(b.dlogits));
  });
  check_launch("cross entropy backward");
}

}  // namespace qkv
