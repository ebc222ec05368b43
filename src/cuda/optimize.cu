// A step of an optimiser: three launches for all parameters together. Chunks of gradients are
// squared and summed; one block makes of these the norm, the factor of clipping and what depends on
// the count of steps; then every chunk is updated, or none when the norm is not finite.
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements for a block

struct Item {
  const float* gradient;
  float *m, *v, *master, *ema;
  void* parameter;
  std::int64_t* steps;
  std::int64_t count, first_chunk;
  double weight_decay;
  DType dtype;
  bool by_four;  // everything is aligned
};

// What the second launch says about a parameter.
struct Verdict {
  float factor;    // of gradients; negative: leave everything as it is
  float keep, lr;  // of the parameter, of the step; adamw: lr is already unbiased
  float unbias;    // adamw: of v
};

struct StepJob {
  const Item* items;
  std::int64_t item_count;
  unsigned chunks;
  OptimizerRule rule;
  double lr, beta1, beta2, clip_norm;
  float b1, b2, rest1, rest2, eps, share;  // share: of the parameter in its running mean
  double* squares;                         // [chunks]
  Verdict* verdicts;                       // [items]
  float* norm;
};

__device__ std::int64_t item_of(const StepJob& job, std::int64_t chunk) {
  std::int64_t low = 0, high = job.item_count - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (job.items[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void squares_kernel(StepJob job) {
  __shared__ double room[kThreads / 32];
  const Item item = job.items[item_of(job, blockIdx.x)];
  const std::int64_t begin = (blockIdx.x - item.first_chunk) * kChunk;
  const std::int64_t count = min(kChunk, item.count - begin);
  const float* x = item.gradient + begin;
  double total = 0;
  const std::int64_t fours = item.by_four ? count / 4 : 0;
  for (std::int64_t i = threadIdx.x; i < fours; i += kThreads) {
    const float4 g = reinterpret_cast<const float4*>(x)[i];
    total += double{g.x * g.x} + double{g.y * g.y} + double{g.z * g.z} + double{g.w * g.w};
  }
  for (std::int64_t i = 4 * fours + threadIdx.x; i < count; i += kThreads) {
    total += double{x[i] * x[i]};
  }
  total = block_sum(total, room);
  if (threadIdx.x == 0) job.squares[blockIdx.x] = total;
}

__global__ void verdict_kernel(StepJob job) {
  __shared__ double room[kThreads / 32];
  double total = 0;
  for (unsigned i = threadIdx.x; i < job.chunks; i += kThreads) total += job.squares[i];
  const double norm = sqrt(block_sum(total, room));
  const auto rounded = static_cast<float>(norm);
  if (threadIdx.x == 0) *job.norm = rounded;
  const bool clips = job.clip_norm > 0 && norm > job.clip_norm;
  const double factor = clips ? job.clip_norm / (norm + 1e-6) : 1;  // as torch does
  for (std::int64_t i = threadIdx.x; i < job.item_count; i += kThreads) {
    const Item& item = job.items[i];
    Verdict verdict{-1, 1, 0, 1};
    if (isfinite(rounded)) {
      const auto t = static_cast<double>(++*item.steps);
      const bool unbiases = job.rule == OptimizerRule::adamw;
      verdict.factor = static_cast<float>(factor);
      verdict.keep = static_cast<float>(1 - job.lr * item.weight_decay);
      verdict.lr = static_cast<float>(unbiases ? job.lr / (1 - pow(job.beta1, t)) : job.lr);
      verdict.unbias = static_cast<float>(1 / (1 - pow(job.beta2, t)));
    }
    job.verdicts[i] = verdict;
  }
}

// The step of one element; m and v move on.
template <OptimizerRule kRule>
__device__ float direction(const StepJob& job, const Verdict& verdict, float g, float& m,
                           float& v) {
  if constexpr (kRule == OptimizerRule::adamw) {
    m = fmaf(job.b1, m, job.rest1 * g);
    v = fmaf(job.b2, v, job.rest2 * g * g);
    return m / (sqrtf(v * verdict.unbias) + job.eps);
  } else if constexpr (kRule == OptimizerRule::lion) {
    const float mean = fmaf(job.b1, m, job.rest1 * g);
    m = fmaf(job.b2, m, job.rest2 * g);
    return mean > 0 ? 1.0f : mean < 0 ? -1.0f : 0.0f;
  } else {
    m = fmaf(job.b1, m, g);
    return m;
  }
}

template <int kCount>
__device__ void load(float (&x)[kCount], const float* from) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
  } else {
    x[0] = *from;
  }
}
template <int kCount>
__device__ void store(const float (&x)[kCount], float* to) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(x);
  } else {
    *to = x[0];
  }
}

// kCount neighbouring elements from i on.
template <OptimizerRule kRule, class T, int kCount>
__device__ void update(const StepJob& job, const Item& item, const Verdict& verdict,
                       std::int64_t i) {
  struct alignas(kCount * sizeof(T)) Narrow {
    T values[kCount];
  };
  T* parameter = static_cast<T*>(item.parameter) + i;
  alignas(16) float g[kCount], m[kCount] = {}, v[kCount] = {}, w[kCount];
  Narrow narrow;
  load(g, item.gradient + i);
  if (item.m != nullptr) load(m, item.m + i);
  if constexpr (kRule == OptimizerRule::adamw) load(v, item.v + i);
  if (item.master != nullptr) {
    load(w, item.master + i);
  } else {
    narrow = *reinterpret_cast<const Narrow*>(parameter);
    for (int k = 0; k < kCount; ++k) w[k] = to_float(narrow.values[k]);
  }
  for (int k = 0; k < kCount; ++k) {
    const float u = direction<kRule>(job, verdict, g[k] * verdict.factor, m[k], v[k]);
    w[k] = w[k] * verdict.keep - verdict.lr * u;
    narrow.values[k] = from_float<T>(w[k]);
  }
  if (item.m != nullptr) store(m, item.m + i);
  if constexpr (kRule == OptimizerRule::adamw) store(v, item.v + i);
  if (item.master != nullptr) store(w, item.master + i);
  *reinterpret_cast<Narrow*>(parameter) = narrow;
  if (item.ema == nullptr) return;
  load(g, item.ema + i);
  for (int k = 0; k < kCount; ++k) g[k] = fmaf(job.share, w[k] - g[k], g[k]);
  store(g, item.ema + i);
}

template <OptimizerRule kRule, class T>
__device__ void update_chunk(const StepJob& job, const Item& item, const Verdict& verdict) {
  const std::int64_t begin = (blockIdx.x - item.first_chunk) * kChunk;
  const std::int64_t end = min(item.count, begin + kChunk);
  const std::int64_t fours = item.by_four ? begin + (end - begin) / 4 * 4 : begin;
  for (std::int64_t i = begin + 4 * threadIdx.x; i < fours; i += 4 * kThreads) {
    update<kRule, T, 4>(job, item, verdict, i);
  }
  for (std::int64_t i = fours + threadIdx.x; i < end; i += kThreads) {
    update<kRule, T, 1>(job, item, verdict, i);
  }
}

template <OptimizerRule kRule>
__global__ void update_kernel(StepJob job) {
  const std::int64_t index = item_of(job, blockIdx.x);
  const Item item = job.items[index];
  const Verdict verdict = job.verdicts[index];
  if (verdict.factor < 0) return;
  switch (item.dtype) {
    case DType::bf16: return update_chunk<kRule, device_bf16>(job, item, verdict);
    case DType::f16: return update_chunk<kRule, device_f16>(job, item, verdict);
    default: return update_chunk<kRule, float>(job, item, verdict);
  }
}

// The parameters that have elements, and how many chunks they are.
std::vector<Item> items_of(const OptimizerProblem& p, std::int64_t& chunks) {
  std::vector<Item> items;
  for (const OptimizerItem& from : p.items) {
    Item item{};
    item.gradient = pointer<const float>(from.gradient);
    item.m = pointer<float>(from.m);
    item.v = pointer<float>(from.v);
    item.master = pointer<float>(from.master);
    item.ema = pointer<float>(from.ema);
    item.parameter = from.parameter.raw();
    item.steps = pointer<std::int64_t>(from.steps);
    item.count = from.parameter.numel();
    item.first_chunk = chunks;
    item.weight_decay = from.weight_decay;
    item.dtype = from.parameter.dtype();
    item.by_four = is_aligned(item.gradient) && is_aligned(item.m) && is_aligned(item.v) &&
                   is_aligned(item.master) && is_aligned(item.ema) && is_aligned(item.parameter);
    chunks += (item.count + kChunk - 1) / kChunk;
    items.push_back(item);
  }
  return items;
}

}  // namespace
}  // namespace cuda

std::unique_ptr<Reading> CudaBackend::optimize(const OptimizerProblem& p) {
  std::int64_t chunks = 0;
  const std::vector<cuda::Item> items = cuda::items_of(p, chunks);
  if (items.empty()) {
    Tensor norm = p.norm;
    fill(norm, 0);
    return begin_reading(norm);
  }
  const auto count = static_cast<std::int64_t>(items.size());
  const Tensor table = upload(std::as_bytes(std::span(items)));
  const Tensor squares = scratch<double>(chunks), verdicts = scratch<cuda::Verdict>(count);
  cuda::StepJob job{};
  job.items = static_cast<const cuda::Item*>(table.raw());
  job.item_count = count;
  job.chunks = static_cast<unsigned>(chunks);
  job.rule = p.rule;
  job.lr = p.lr;
  job.beta1 = p.beta1;
  job.beta2 = p.beta2;
  job.clip_norm = p.clip_norm;
  job.b1 = static_cast<float>(p.beta1);
  job.b2 = static_cast<float>(p.beta2);
  job.rest1 = static_cast<float>(1 - p.beta1);
  job.rest2 = static_cast<float>(1 - p.beta2);
  job.eps = static_cast<float>(p.eps);
  job.share = static_cast<float>(1 - p.ema);
  job.squares = static_cast<double*>(squares.raw());
  job.verdicts = static_cast<cuda::Verdict*>(verdicts.raw());
  job.norm = cuda::pointer<float>(p.norm);
  const cudaStream_t queue = stream();
  const unsigned blocks = job.chunks;
  if (blocks > 0) cuda::squares_kernel<<<blocks, cuda::kThreads, 0, queue>>>(job);
  cuda::verdict_kernel<<<1, cuda::kThreads, 0, queue>>>(job);
  std::unique_ptr<Reading> norm = begin_reading(p.norm);
  const auto run = [&]<OptimizerRule kRule>() {
    if (blocks > 0) cuda::update_kernel<kRule><<<blocks, cuda::kThreads, 0, queue>>>(job);
  };
  switch (p.rule) {
    case OptimizerRule::adamw: run.template operator()<OptimizerRule::adamw>(); break;
    case OptimizerRule::lion: run.template operator()<OptimizerRule::lion>(); break;
    case OptimizerRule::sgd: run.template operator()<OptimizerRule::sgd>(); break;
  }
  check_launch("optimize");
  return norm;
}

}  // namespace qkv
