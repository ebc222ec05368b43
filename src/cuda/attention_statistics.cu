// From rows to heads and keys: the statistics that need every row of a head.
#include "cuda/attention.h"
#include "cuda/attention_tile.cuh"

namespace qkv::cuda {
namespace {

struct HeadResults {
  float *max_logit = nullptr, *score_mean = nullptr, *score_var = nullptr;
  float *entropy_mean = nullptr, *entropy_relative = nullptr, *saturation = nullptr;
};

// The threads that share a sequence and head: a warp, or a block of several where rows are many.
// Sums are in an order that the shapes decide; every thread gets them.
template <int kSize>
struct Group {
  double* room;
  float* float_room;

  __device__ double sum(double x) const {
    if constexpr (kSize > 32) {
      return block_sum(x, room);
    } else {
      for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
      return x;
    }
  }
  __device__ float largest(float x) const {
    if constexpr (kSize > 32) {
      return block_max(x, float_room);
    } else {
      for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
      return x;
    }
  }
};

// What rows told, of all rows of a head. Sums are double.
template <int kSize>
__global__ void __launch_bounds__(kThreads)
    head_kernel(AttentionJob job, std::int64_t pairs_of_all, RowStatistics rows, HeadResults to) {
  __shared__ double room[kThreads / 32];
  __shared__ float float_room[kThreads / 32];
  const Group<kSize> group{room, float_room};
  const std::int64_t result =
      std::int64_t{blockIdx.x} * (kThreads / kSize) + static_cast<int>(threadIdx.x) / kSize;
  if (result >= pairs_of_all) return;  // whole groups
  const int sequence = static_cast<int>(result / job.heads);
  const int head = static_cast<int>(result - std::int64_t{sequence} * job.heads);
  const Sequence s = job.sequences[sequence];
  const std::int64_t at = job.lse_row(s, head, 0);
  const int first = static_cast<int>(threadIdx.x) % kSize;
  double pairs = 0, total = 0, entropy = 0, relative = 0;
  float seeing = 0, saturated = 0, logit = -INFINITY, bad = 0;
  for (int i = first; i < s.q_rows; i += kSize) {
    const float seen = rows.seen[at + i];
    if (seen == 0) continue;
    seeing += 1;
    pairs += seen;
    total += seen * (double{rows.origin[at + i]} + rows.mean[at + i]);
    logit = fmaxf(logit, rows.logit[at + i]);
    bad += isnan(rows.logit[at + i]) ? 1.0f : 0.0f;
    if (rows.entropy != nullptr) {
      entropy += rows.entropy[at + i];
      if (seen > 1) relative += rows.entropy[at + i] / logf(seen);
    }
    if (rows.top_weight != nullptr) saturated += rows.top_weight[at + i] > 0.99f ? 1.0f : 0.0f;
  }
  pairs = group.sum(pairs);
  const double mean = group.sum(total) / max(pairs, 1.0);
  double squares = 0;
  for (int i = first; i < s.q_rows; i += kSize) {
    const float seen = rows.seen[at + i];
    if (seen == 0) continue;
    const double gap = double{rows.origin[at + i]} + rows.mean[at + i] - mean;
    squares += rows.squares[at + i] + seen * gap * gap;
  }
  squares = group.sum(squares);
  entropy = group.sum(entropy);
  relative = group.sum(relative);
  const double all = group.sum(seeing), sharp = group.sum(saturated), unknown = group.sum(bad);
  logit = group.largest(logit);
  if (first != 0) return;
  const auto put = [&](float* where, double value) {
    if (where != nullptr) where[result] = static_cast<float>(pairs > 0 ? value : 0);
  };
  if (to.max_logit != nullptr) to.max_logit[result] = unknown > 0 ? NAN : logit;
  put(to.score_mean, mean);
  put(to.score_var, squares / pairs);
  put(to.entropy_mean, entropy / all);
  put(to.entropy_relative, relative / all);
  put(to.saturation, sharp / all);
}

// A block per 64 keys of a head walks over the rows that see them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    received_kernel(AttentionJob job, RowStatistics rows, float* to) {
  __shared__ ProductRoom room;
  __shared__ float columns[16][kTile];
  const Lane lane;
  const int head = blockIdx.y, sequence = blockIdx.z;
  const Sequence s = job.sequences[sequence];
  const std::int64_t first = std::int64_t{blockIdx.x} * kTile;
  if (first >= s.k_rows) return;
  const auto k = block_of<T>(job.k, s.k_batch, head / job.group, s.k_start, first, s.k_rows);
  const Range range = rows_seeing(job, s, first, first + kTile - 1);
  float sums[kSide] = {};
  for (std::int64_t i = range.begin / kTile * kTile; i < range.end; i += kTile) {
    const auto q = block_of<T>(job.q, s.q_batch, head, s.q_start, i, s.q_rows);
    Tile t;
    product(q, k, job.head_size, room, t);
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      const std::int64_t row = i + lane.row(r);
      if (row >= s.q_rows) continue;
      const std::int64_t at = job.lse_row(s, head, row);
      for (int c = 0; c < kSide; ++c) {
        const Score pair = score_of(job, s, sequence, head, row, first + lane.column(c), t[r][c]);
        if (pair.visible) sums[c] += expf(pair.s - rows.top[at]) * rows.share[at];
      }
    }
  }
  __syncthreads();
  for (int c = 0; c < kSide; ++c) columns[lane.ty][lane.column(c)] = sums[c];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kTile || first + column >= s.k_rows) return;
  float total = 0;
  for (int y = 0; y < 16; ++y) total += columns[y][column];
  to[(std::int64_t{s.k_batch} * job.heads + head) * job.k_total + s.k_start + first + column] =
      total;
}

}  // namespace

void head_statistics(const AttentionJob& job, const AttentionGrid& grid, const RowStatistics& rows,
                     const AttentionStatistics& wanted, cudaStream_t stream) {
  HeadResults to;
  to.max_logit = pointer<float>(wanted.max_logit);
  to.score_mean = pointer<float>(wanted.score_mean);
  to.score_var = pointer<float>(wanted.score_var);
  to.entropy_mean = pointer<float>(wanted.entropy_mean);
  to.entropy_relative = pointer<float>(wanted.entropy_relative);
  to.saturation = pointer<float>(wanted.saturation);
  const std::int64_t pairs = std::int64_t{grid.sequences} * job.heads;
  constexpr std::int64_t kFewRows = 256;
  if (grid.longest_q <= kFewRows) {
    head_kernel<32>
        <<<blocks_for(pairs, kThreads / 32), kThreads, 0, stream>>>(job, pairs, rows, to);
  } else {
    head_kernel<kThreads><<<blocks_for(pairs, 1), kThreads, 0, stream>>>(job, pairs, rows, to);
  }
  check_launch("attention statistics");
}

void received(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
              const RowStatistics& rows, float* to, cudaStream_t stream) {
  const dim3 blocks(grid.key_tiles(kTile), static_cast<unsigned>(job.heads), grid.sequences);
  dispatch_device(dtype, [&]<class T>() {
    received_kernel<T><<<blocks, kThreads, 0, stream>>>(job, rows, to);
  });
  check_launch("attention statistics");
}

}  // namespace qkv::cuda
