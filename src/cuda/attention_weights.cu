// The weights of chosen heads and rows, or their averages over blocks: for looking, so the plainest
// way serves. A block has one row of the result and makes every score twice.
#include "cuda/attention.h"

namespace qkv::cuda {
namespace {

template <class T>
__device__ Score pair_of(const AttentionJob& job, const Sequence& s, int sequence, int head,
                         std::int64_t i, std::int64_t j) {
  const T* q = job.q.at<const T>(s.q_batch, head, s.q_start + i);
  const T* k = job.k.at<const T>(s.k_batch, head / job.group, s.k_start + j);
  float dot = 0;
  for (int d = 0; d < job.head_size; ++d) {
    dot = fmaf(to_float(q[d * job.q.element]), to_float(k[d * job.k.element]), dot);
  }
  return score_of(job, s, sequence, head, i, j, dot);
}

struct WeightsResult {
  float* data;
  const std::int64_t *heads, *rows;
  std::int64_t row_count, pool_rows, pool_keys, out_rows, out_keys;
};

template <class T>
__global__ void weights_kernel(AttentionJob job, WeightsResult to) {
  __shared__ float room[kThreads / 32];
  const int sequence = blockIdx.z, head = static_cast<int>(to.heads[blockIdx.y]);
  const Sequence s = job.sequences[sequence];
  const std::int64_t first = blockIdx.x * to.pool_rows;
  const std::int64_t last = min(to.row_count, first + to.pool_rows);
  float* out =
      to.data +
      ((std::int64_t{sequence} * gridDim.y + blockIdx.y) * to.out_rows + blockIdx.x) * to.out_keys;
  for (std::int64_t at = first; at < last; ++at) {
    const std::int64_t i = to.rows[at];
    float top = job.sinks != nullptr ? job.sinks[head] : -INFINITY;
    for (std::int64_t j = threadIdx.x; j < s.k_rows; j += kThreads) {
      const Score pair = pair_of<T>(job, s, sequence, head, i, j);
      if (pair.visible) top = fmaxf(top, pair.s);
    }
    top = block_max(top, room);
    if (top == -INFINITY) top = 0;
    float total = 0;
    for (std::int64_t j = threadIdx.x; j < s.k_rows; j += kThreads) {
      const Score pair = pair_of<T>(job, s, sequence, head, i, j);
      if (pair.visible) total += expf(pair.s - top);
    }
    total = block_sum(total, room);
    if (job.sinks != nullptr) total += expf(job.sinks[head] - top);
    const float share = total == 0 ? 0.0f : 1 / (total * static_cast<float>(last - first));
    for (std::int64_t column = threadIdx.x; column < to.out_keys; column += kThreads) {
      const std::int64_t end = min(std::int64_t{s.k_rows}, (column + 1) * to.pool_keys);
      float sum = 0;
      for (std::int64_t j = column * to.pool_keys; j < end; ++j) {
        const Score pair = pair_of<T>(job, s, sequence, head, i, j);
        if (pair.visible) sum += expf(pair.s - top) * share;
      }
      out[column] += sum;
    }
  }
}

}  // namespace

void weights(const AttentionJob& job, DType dtype, const AttentionWeights& wanted,
             const std::int64_t* heads, const std::int64_t* rows, cudaStream_t stream) {
  const Tensor& w = wanted.weights;
  const WeightsResult to{pointer<float>(w),
                         heads,
                         rows,
                         static_cast<std::int64_t>(wanted.rows.size()),
                         wanted.pool_rows,
                         wanted.pool_keys,
                         w.size(2),
                         w.size(3)};
  const dim3 blocks(static_cast<unsigned>(w.size(2)), static_cast<unsigned>(w.size(1)),
                    static_cast<unsigned>(w.size(0)));
  dispatch_device(dtype,
                  [&]<class T>() { weights_kernel<T><<<blocks, kThreads, 0, stream>>>(job, to); });
  check_launch("attention weights");
}

}  // namespace qkv::cuda
