// The forward pass for Hopper GPUs as it is called: which tiles it takes, and the statistics of
// heads that follow it. attention_forward_sm90.cuh is the kernel.
#include "cuda/attention_forward_sm90.h"

#include "cuda/attention_forward_sm90_launch.cuh"
#include "cuda/attention_received_sm90.h"

namespace qkv::cuda {
namespace {

using namespace forward_sm90;

// ---- Statistics of a head ----------------------------------------------------------------------

__device__ float larger(float a, float b) { return a > b || isnan(a) ? a : b; }  // NaN stays

// A warp per sequence and head, over the `count` numbers that warps have left.
__global__ void finish_largest_kernel(const float* largest, int count, float unit,
                                      float* max_logit) {
  const int pair = blockIdx.x;
  float top = -kInfinity;
  for (int i = threadIdx.x; i < count; i += 32)
    top = larger(top, largest[std::int64_t(pair) * count + i]);
  for (int step = 1; step < 32; step *= 2)
    top = larger(top, __shfl_xor_sync(0xffffffff, top, step));
  if (threadIdx.x == 0) max_logit[pair] = top * unit;
}

// Sums over the rows of a head. Those of scores are f64: the variance is what is left of two.
struct HeadSums {
  float top = -kInfinity;
  float rows = 0, entropy = 0, relative = 0, saturated = 0;
  double pairs = 0, total = 0, squares = 0;

  __device__ void add(const RowTold& row, int visible) {
    if (row.top == -kInfinity) return;
    top = larger(top, row.top);
    rows += 1;
    entropy += row.entropy;
    relative += visible > 1 ? row.entropy / logf(float(visible)) : 0.f;
    saturated += row.top_weight > 0.99f ? 1.f : 0.f;
    pairs += visible;
  }
  __device__ void join(const HeadSums& other) {
    top = larger(top, other.top);
    rows += other.rows;
    entropy += other.entropy;
    relative += other.relative;
    saturated += other.saturated;
    pairs += other.pairs;
    total += other.total;
    squares += other.squares;
  }
  __device__ HeadSums of_lane(int distance) const {
    const auto its = [&](auto x) { return __shfl_xor_sync(0xffffffff, x, distance); };
    return {its(top),       its(rows),  its(entropy), its(relative),
            its(saturated), its(pairs), its(total),   its(squares)};
  }
  __device__ void write(const Sm90Statistics& to, int pair, double unit) const {
    const double seeing = fmax(rows, 1.f), count = fmax(pairs, 1.0), mean = total / count;
    const auto put = [pair](float* where, double value) {
      if (where) where[pair] = float(value);
    };
    put(to.max_logit, top * unit);
    put(to.score_mean, mean * unit);
    // Never negative; NaN stays.
    const double variance = squares / count - mean * mean;
    put(to.score_var, variance < 0 ? 0 : variance * unit * unit);
    put(to.entropy_mean, entropy / seeing);
    put(to.entropy_relative, relative / seeing);
    put(to.saturation, saturated / seeing);
  }
};

// A sink takes its share of what row `at` has told of its keys. Done here, since there is no
// register to spare where rows are made.
__device__ void add_sink(const Params& p, float sink, std::int64_t at, RowTold& row) {
  const float lse = p.lse[at], taken = expf(sink - lse), left = 1 - taken;
  const float of_keys = left > 0 ? lse + log1pf(-taken) : 0;
  row.entropy = left > 0 ? entropy_with_sink(row.entropy, left, of_keys, lse) : lse;
  row.top_weight *= left;
  if (p.statistics.entropy) p.statistics.entropy[at] = row.entropy;
  if (p.statistics.top_weight) p.statistics.top_weight[at] = row.top_weight;
}

constexpr int kFinishWarps = 16;

// A block per sequence and head puts together what its rows have told; always in the same order.
__global__ void __launch_bounds__(32 * kFinishWarps)
    finish_statistics_kernel(const __grid_constant__ Params p, int block_rows) {
  __shared__ HeadSums of_warps[kFinishWarps];
  const int pair = blockIdx.x;
  Sm90Sequence sequence = p.all_alike;
  if (p.sequences)
    sequence = p.sequences[pair / p.heads];
  else
    sequence.q_batch = pair / p.heads;
  const BandMask band{p.left, p.right, sequence.offset, sequence.k_visible};
  const int rows = p.row_blocks * block_rows;  // padded
  const RowTold* const told = p.told + std::int64_t(pair) * rows;
  const int head = pair % p.heads;
  const std::int64_t first =
      (std::int64_t(sequence.q_batch) * p.heads + head) * p.q_rows + sequence.q_start;
  HeadSums sums;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows; i += 32 * kFinishWarps) {
    RowTold row = told[i];
    const int block = i / block_rows;
    const int at = first_row_of(block, block_rows, sequence.q_rows) + i - block * block_rows;
    const KeyRange seen = band.of(at);
    if (p.sinks && row.top != -kInfinity) add_sink(p, p.sinks[head], first + at, row);
    const int next = first_row_of(block + 1, block_rows, sequence.q_rows);
    if (p.row_terms && at < min(next, sequence.q_rows)) {
      Sm90RowTerms terms{0, -kInfinity};
      if (row.top != -kInfinity) terms = {row.top, log2f(row.top_weight)};
      p.row_terms[std::int64_t(pair) * p.term_rows + at] = terms;
    }
    sums.add(row, seen.end - seen.begin);
    (i % 16 < 8 ? sums.total : sums.squares) += row.moment;
  }
  for (int step = 1; step < 32; step *= 2) sums.join(sums.of_lane(step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sums = of_warps[threadIdx.x % kFinishWarps];
  for (int step = 1; step < kFinishWarps; step *= 2) sums.join(sums.of_lane(step));
  if (threadIdx.x == 0) sums.write(p.statistics, pair, p.scale / kLog2e);
}

// ---- Host --------------------------------------------------------------------------------------

// What rows have told, with room for blocks of any shape. Behind it lie the terms of rows, where
// somebody asks what keys receive.
std::int64_t told_bytes(const Sm90Forward& call) {
  return call.sequence_count * call.heads * (call.longest + 192) * std::int64_t(sizeof(RowTold));
}
Sm90RowTerms* row_terms_of(const Sm90Forward& call) {
  auto* const workspace = static_cast<std::byte*>(call.statistics->workspace);
  return reinterpret_cast<Sm90RowTerms*>(workspace + told_bytes(call));
}

template <class S>
void launch(const Sm90Forward& call, cudaStream_t stream) {
  Params p = params_of<S>(call);
  if (call.statistics) {
    p.statistics = *call.statistics;
    if (S::Statistics)
      p.told = static_cast<RowTold*>(call.statistics->workspace);
    else
      p.largest = static_cast<float*>(call.statistics->workspace);
    if (p.statistics.received) p.row_terms = row_terms_of(call);
    p.term_rows = int(sm90_term_rows(call));
  }
  if (!launch_blocks<S>(p, stream)) return;
  if (p.told) finish_statistics_kernel<<<p.pairs, 32 * kFinishWarps, 0, stream>>>(p, S::Rows);
  if (p.largest)
    finish_largest_kernel<<<p.pairs, 32, 0, stream>>>(p.largest, p.row_blocks * S::Rows / 16,
                                                      p.scale / kLog2e, p.statistics.max_logit);
  check_status(cudaGetLastError(), kForwardName);
}

// The query rows that the busiest multiprocessor goes through, in blocks of `rows`.
std::int64_t largest_share(const Sm90Forward& call, int rows) {
  const std::int64_t works = call.sequence_count * call.heads * ((call.longest + rows - 1) / rows);
  return (works + multiprocessors() - 1) / multiprocessors() * rows;
}

// For heads of 128 without a mask, three warpgroups and tiles of 80 keys do the same work in 11/12
// of the time, unless it divides worse into their larger blocks of rows.
template <class T, Watched What>
void launch_watched(const Sm90Forward& call, cudaStream_t stream) {
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 4, false, What>>(call, stream);
  if constexpr (What <= Watched::entropy) {
    const bool cut = call.left >= 0 || call.right >= 0;
    if (call.head_size <= 128 && !cut &&
        11 * largest_share(call, 192) < 12 * largest_share(call, 128))
      return launch<Shape<T, 128, 80, 3, 3, false, What>>(call, stream);
  }
  if (call.head_size <= 128) return launch<Shape<T, 128, 128, 2, 2, false, What>>(call, stream);
  if (call.head_size <= 192) return launch<Shape<T, 192, 80, 2, 2, false, What>>(call, stream);
  launch<Shape<T, 256, 80, 2, 2, false, What>>(call, stream);
}

template <class T>
void launch_softcap(const Sm90Forward& call, cudaStream_t stream) {
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 2, true>>(call, stream);
  if (call.head_size <= 128) return launch<Shape<T, 128, 128, 2, 2, true>>(call, stream);
  launch<Shape<T, 256, 64, 2, 2, true>>(call, stream);
}

template <class T>
void launch_for(const Sm90Forward& call, cudaStream_t stream) {
  if (call.pairs.said != Said::nothing) return attention_pairs_sm90(call, stream);
  if (call.softcap > 0) return launch_softcap<T>(call, stream);
  if (!call.statistics || !call.statistics->need_a_watch())
    return launch_watched<T, Watched::no>(call, stream);
  if (call.statistics->top_index) return launch_watched<T, Watched::keys>(call, stream);
  if (call.statistics->need_moments()) return launch_watched<T, Watched::moments>(call, stream);
  launch_watched<T, Watched::entropy>(call, stream);
}

}  // namespace

std::int64_t sm90_statistics_workspace(const Sm90Forward& call) {
  const bool receives = call.statistics && call.statistics->received;
  const std::int64_t rows = call.sequence_count * call.heads * sm90_term_rows(call);
  return told_bytes(call) + (receives ? rows * std::int64_t(sizeof(Sm90RowTerms)) : 0);
}

const char* why_not_sm90_forward(const Sm90Forward& call) {
  if (call.dtype != DType::bf16 && call.dtype != DType::f16) return "not bf16 or f16";
  if (call.head_size != call.value_size) return "values differ in size from keys";
  if (call.head_size % 8 != 0 || call.head_size < 8 || call.head_size > 256)
    return "head size is not a multiple of 8 up to 256";
  if (!(call.scale > 0)) return "scale is not positive";
  if (const char* reason = why_not_sm90_pairs(call)) return reason;
  if (call.statistics && call.softcap > 0) return "statistics with softcap";
  if (call.statistics && call.scale > kLargestWatchedScale) return "statistics with a large scale";
  if (call.statistics && call.scale < kLeastWatchedScale) return "statistics with a tiny scale";
  const auto mapped = [&](const void* data, const Sm90Strides& s) {
    return can_map({data, 0, 0, 0, 0, s.batch, s.head, s.row});
  };
  if (!mapped(call.q, call.q_strides) || !mapped(call.k, call.k_strides) ||
      !mapped(call.v, call.v_strides) || !mapped(call.out, call.out_strides))
    return "rows are not 16-byte aligned";
  if (std::max(call.q_rows, call.k_rows) >= kUnbounded) return "too many rows";
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major != 9) return "not a Hopper GPU";
  return nullptr;
}

void attention_forward_sm90(const Sm90Forward& call, cudaStream_t stream) {
  if (call.dtype == DType::bf16)
    launch_for<__nv_bfloat16>(call, stream);
  else
    launch_for<__half>(call, stream);
  if (call.statistics && call.statistics->received)
    attention_received_sm90(call, row_terms_of(call), stream);
}

}  // namespace qkv::cuda
