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
  std::int64_t apart, dapart;  // from row to row of logits and dlogits
  float label_smoothing, z_loss;
  float* lse;
  bool by_pack;  // rows of both begin at multiples of 16 bytes
};

// f32 logits may be far apart and are worth an exact exponential; 16-bit ones are not.
template <class T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// Maximum and sum in one pass: values above the maximum so far scale what was summed.
template <class T>
struct RunningSum {
  float top = -INFINITY, total = 0, plain = 0;

  template <int kCount>
  __device__ void add(const float (&values)[kCount]) {
    float most = top;
    for (int k = 0; k < kCount; ++k) {
      most = fmaxf(most, values[k]);
      plain += values[k];
    }
    if (most == -INFINITY) {  // nothing yet, unless it is NaN
      for (int k = 0; k < kCount; ++k) total += values[k] == -INFINITY ? 0 : values[k];
      return;
    }
    total *= exponential<T>(top - most);
    for (int k = 0; k < kCount; ++k) total += exponential<T>(values[k] - most);
    top = most;
  }
};

// Calls f(i, values) for the elements of a row: as many at a time as 16 bytes hold, or one.
template <class T, class F>
__device__ void for_each_pack(const T* row, std::int64_t count, bool by_pack, F&& f) {
  constexpr int kEach = Pack16<T>::kCount;
  const std::int64_t packs = by_pack ? count / kEach : 0;
  for (std::int64_t p = threadIdx.x; p < packs; p += kThreads) {
    const auto pack = *reinterpret_cast<const Pack16<T>*>(row + p * kEach);
    float values[kEach];
    for (int k = 0; k < kEach; ++k) values[k] = to_float(pack.values[k]);
    f(p * kEach, values);
  }
  for (std::int64_t i = packs * kEach + threadIdx.x; i < count; i += kThreads) {
    const float values[1] = {to_float(row[i])};
    f(i, values);
  }
}

// A target that is none of the classes cannot be an Error without waiting for the device: its loss
// is NaN, and so is every sum it enters.
template <class T>
__global__ void cross_entropy_kernel(LossJob job, const T* logits, double* losses) {
  __shared__ float room[kThreads / 32];
  __shared__ double wide_room[kThreads / 32];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const T* x = logits + row * job.apart;
    RunningSum<T> sums;
    for_each_pack(x, job.classes, job.by_pack,
                  [&](std::int64_t, const auto& values) { sums.add(values); });
    const float all = block_max(sums.top, room);
    const bool none = sums.top == -INFINITY && !isnan(sums.total);
    const float total = block_sum(none ? 0.0f : sums.total * expf(sums.top - all), room);
    const double lse = double{all} + log(double{total});
    const double sum = job.label_smoothing > 0 ? block_sum(double{sums.plain}, wide_room) : 0;
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
#pragma unroll 8
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
    T* dx = dlogits + row * job.dapart;
    const std::int64_t target = job.targets[row];
    const bool counts = target != job.ignore_index;
    const float d = counts ? *dloss / *count : 0.0f, lse = job.lse[row];
    const float slope = d * (1 + 2 * job.z_loss * lse);
    const float even = d * job.label_smoothing / static_cast<float>(job.classes);
    const float hit = d * (1 - job.label_smoothing);
    for_each_pack(logits + row * job.apart, job.classes, job.by_pack,
                  [&]<int kCount>(std::int64_t i, const float(&values)[kCount]) {
                    struct alignas(kCount * sizeof(T)) Out {
                      T values[kCount];
                    };
                    Out out;
                    for (int k = 0; k < kCount; ++k) {
                      float gradient = exponential<T>(values[k] - lse) * slope - even;
                      if (i + k == target) gradient -= hit;
                      out.values[k] = from_float<T>(counts ? gradient : 0.0f);
                    }
                    *reinterpret_cast<Out*>(dx + i) = out;
                  });
  }
}

LossJob job_of(const CrossEntropyProblem& p, const Tensor& dlogits) {
  const auto on_packs = [](const Tensor& x) {
    return is_aligned(x.raw()) &&
           x.stride(0) * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0;
  };
  return {pointer<const std::int64_t>(p.targets),
          p.logits.size(0),
          p.logits.size(1),
          p.ignore_index,
          p.logits.stride(0),
          dlogits.stride(0),
          p.label_smoothing,
          p.z_loss,
          pointer<float>(p.lse),
          on_packs(p.logits) && on_packs(dlogits)};
}

}  // namespace
}  // namespace cuda

void CudaBackend::cross_entropy(const CrossEntropyProblem& p) {
  const cuda::LossJob job = cuda::job_of(p, p.logits);
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
  const cuda::LossJob job = cuda::job_of(p, b.dlogits);
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
