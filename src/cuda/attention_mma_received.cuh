// What keys receive, by matrix instructions: sums over rows of weights that are made once more,
// from what forward has left of each row. A block has keys of one head and walks over the queries
// that see them; the sum of a key has one order.
#pragma once

#include "cuda/attention_mma.cuh"

namespace qkv::cuda {

template <class T, int kSize>
struct ReceivedPlan {
  static constexpr int kWarps = kHalves<T> ? 8 : 4, kThreads = 32 * kWarps;
  static constexpr int kKeys = 64, kQueries = 16 * kWarps, kStages = 2;
  static constexpr int kElements = (kKeys + kStages * kQueries) * kSize;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(T));
  static constexpr int kAtOnce = kSize > 128 ? 1 : 2;
  static_assert(kBytes >= kWarps * kKeys * static_cast<int>(sizeof(float)));
};

template <class T, int kSize>
__global__ void __launch_bounds__(ReceivedPlan<T, kSize>::kThreads, ReceivedPlan<T, kSize>::kAtOnce)
    mma_received_kernel(const __grid_constant__ AttentionJob job, WorkOrder order,
                        RowStatistics rows, float* to) {
  using Plan = ReceivedPlan<T, kSize>;
  using Tile = WarpTile<T, kSize>;
  constexpr int kKeys = Plan::kKeys, kQueries = Plan::kQueries, kThreads = Plan::kThreads;
  using Pairs = PairBlock<false, kKeys>;
  extern __shared__ __align__(128) char room[];
  const Tile k{reinterpret_cast<T*>(room)};
  const auto q = [&](int stage) { return Tile{k.data + (kKeys + stage * kQueries) * kSize}; };
  const LaneReader<T, kSize> lane;
  const Place place(order);
  const int head = place.head, sequence = place.sequence;
  const Sequence s = job.sequences[sequence];
  // The first keys first: under a causal mask they are seen most.
  const int first = place.tile * kKeys;
  if (first >= s.k_rows) return;
  const BandMask band = band_of(job, s);
  const bool changes = kPairOptions<T> && changes_scores(job);
  const bool hides = kPairOptions<T> && hides_pairs(job);
  const int last = min(first + kKeys, band.visible) - 1;
  KeyRange range{0, 0};
  if (first <= last) {
    range = {band.rows_of(first, s.q_seeing).begin, band.rows_of(last, s.q_seeing).end};
  }

  const auto load_queries = [&](int query, int stage) {
    if (query < range.end) {
      q(stage).template load<kQueries, kThreads>(
          job.q.at<const T>(s.q_batch, head, s.q_start + query), job.q.row, range.end - query,
          job.head_size);
    }
    end_group();
  };
  if (range.begin < range.end) {
    k.template load<kKeys, kThreads>(
        job.k.at<const T>(s.k_batch, head / job.group, s.k_start + first), job.k.row,
        band.visible - first, job.head_size);
    load_queries(range.begin, 0);
  }
  const int warp = warp_number();
  float sums[Pairs::kEach] = {};       // of the lane's columns, over the lane's rows
  [[maybe_unused]] bool wild = false;  // keys, or queries so far, do not split well
  int stage = 0;
#pragma unroll 1
  for (int query = range.begin; query < range.end; query += kQueries, stage ^= 1) {
    const int mine = query + 16 * warp;
    float top[2], share[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = job.lse_row(s, head, min(mine + lane_row(r), s.q_rows - 1));
      top[r] = rows.top[at];
      share[r] = rows.share[at];
    }
    wait_for_groups<0>();
    if constexpr (kExact<T>) {
      bool well = q(stage).template all_splits_well<kQueries, kThreads>();
      if (query == range.begin) well &= k.template all_splits_well<kKeys, kThreads>();
      wild |= __syncthreads_or(!well) != 0;
    } else {
      __syncthreads();  // these queries are there, and nobody needs the last ones
    }
    load_queries(query + kQueries, stage ^ 1);
    if constexpr (!kHalves<T>) {
      q(stage).template pack_left<kQueries, kThreads>();
      __syncthreads();
    }
    if (mine >= range.end) continue;
    Accumulators<1, kKeys> weights;
    multiply_all<1, kKeys>(lane, q(stage), 16 * warp, k, job.head_size, weights);
    const Pairs pairs{sequence, head, mine, first};
    if (kExact<T> && wild) multiply_wild<T>(job, s, pairs, weights[0]);
    PairBits bits = pairs.seen_in(rows_seen(band, s, mine).of);
    if (hides) pairs.apply_mask(job, s, bits);
    if (changes) {
      Pairs::template scale_scores<kExact<T>>(job, weights[0]);
      pairs.add_bias(job, s, weights[0], bits);
    }
    const float unit = kLog2e * (changes ? 1.0f : job.scale);
    Pairs::each(weights[0], [&](float& score, int r, int n) {
      const float weight = share[r] * exp2_fast(unit * (score - top[r]));
      if ((bits.of[r] >> n & 1) != 0) sums[n] += weight;
    });
  }

  // Lanes of equal lane % 4 have the same columns, and so has every warp.
#pragma unroll
  for (float& sum : sums) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  }
  __syncthreads();  // nobody needs keys and queries any more
  auto* const parts = reinterpret_cast<float*>(room);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % 32 < 4) {
#pragma unroll
    for (int n = 0; n < Pairs::kEach; ++n) parts[warp * kKeys + Pairs::lane_column(n)] = sums[n];
  }
  __syncthreads();
  if (thread >= kKeys || first + thread >= s.k_rows) return;
  float total = 0;
  for (int w = 0; w < Plan::kWarps; ++w) total += parts[w * kKeys + thread];
  to[(std::int64_t{s.k_batch} * job.heads + head) * job.k_total + s.k_start + first + thread] =
      total;
}

template <class T>
void launch_mma_received(const AttentionJob& job, const AttentionGrid& grid,
                         const RowStatistics& rows, float* to, cudaStream_t stream) {
  dispatch_size<T>(job.head_size, [&]<class U, int kSize>() {
    using Plan = ReceivedPlan<U, kSize>;
    const WorkOrder order(job, grid, grid.key_tiles(Plan::kKeys), job.heads, grid.longest_q,
                          sizeof(U));
    auto* const kernel = mma_received_kernel<U, kSize>;
    allow_shared(reinterpret_cast<const void*>(kernel), Plan::kBytes);
    kernel<<<order.blocks(), Plan::kThreads, Plan::kBytes, stream>>>(job, order, rows, to);
  });
}

}  // namespace qkv::cuda
