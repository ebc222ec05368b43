// Attention forward in TF32. A warp has 32 queries of one head, so that what it reads of keys and
// values serves two products each; weights stay in registers. A block's queries, and one tile each
// of keys and values, are in shared memory: the next keys arrive while values are multiplied, and
// values while keys are.
#include "cuda/attention_tf32.cuh"

namespace qkv::cuda {
namespace {

constexpr int kWarpRows = 32, kBlocks = kWarpRows / 16;  // queries of a warp

template <int kSize>
struct ForwardPlan {
  static constexpr int kWarps = 4, kKeys = kSize > 64 ? 32 : 64, kAtOnce = 2;
  static constexpr int kRows = kWarpRows * kWarps;  // and threads: a warp has 32 of both
  static constexpr int kBytes = (kRows + 2 * kKeys) * kSize * static_cast<int>(sizeof(float));
};

// Which keys the lane's rows of a warp see. Rows from q_seeing on see none.
struct LaneSight {
  KeyRange seen[kBlocks][2];

  __device__ LaneSight(const Sight& sight, const Sequence& s, int first) {
    for (int m = 0; m < kBlocks; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int i = first + 16 * m + lane_row(half);
        seen[m][half] = i < s.q_seeing ? sight.of(i) : KeyRange{0, 0};
      }
    }
  }
};

// Tiles in which a pair is hidden have zeros in the place of values that are not finite, so that
// who does not see them does not feel them. They are added here to the rows that do: a weight times
// NaN or Inf is NaN or Inf.
template <int kSize>
__device__ void add_strange(const AttentionJob& job, const Sequence& s, int key_head,
                            const KeyRange& keys, const LaneSight& sight,
                            Accumulators<kBlocks, kSize>& sums) {
#pragma unroll 1
  for (int key = keys.begin; key < keys.end; ++key) {
    const float* const row = job.v.at<const float>(s.k_batch, key_head, s.k_start + key);
#pragma unroll
    for (int n = 0; n < kSize / 4; ++n) {
      const int c = n / 8, e = n / 4 % 2, i = n % 4;
      const int column = 32 * c + 8 * (static_cast<int>(threadIdx.x) % 4) + 4 * e + i;
      const float value = column < job.value_size ? row[column] : 0.0f;
      if (isfinite(value)) continue;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const KeyRange& seen = sight.seen[m][half];
          if (key >= seen.begin && key < seen.end) sums[m][16 * c + 4 * i + 2 * half + e] += value;
        }
      }
    }
  }
}

// A sink joins the sum of a row that sees something. Returns the row's lse; `share` is what its
// sums are multiplied by.
__device__ float with_sink(float sink, float lse, float& share) {
  const float top = fmaxf(lse, sink);
  const float both = top + logf(expf(lse - top) + expf(sink - top));
  share *= expf(lse - both);
  return both;
}

template <int kSize>
__global__ void __launch_bounds__(ForwardPlan<kSize>::kRows, ForwardPlan<kSize>::kAtOnce)
    tf32_forward_kernel(const __grid_constant__ AttentionJob job, WorkOrder order, Rows out,
                        float* lse) {
  using Plan = ForwardPlan<kSize>;
  constexpr int kRows = Plan::kRows, kKeys = Plan::kKeys;
  extern __shared__ __align__(128) float room[];
  const FloatTile<kSize> q{room}, k{q.data + kRows * kSize}, v{k.data + kKeys * kSize};
  const LaneReader<kSize> lane;
  const Place place(order);
  const int head = place.pair % job.heads, key_head = head / job.group;
  const Sequence s = job.sequences[place.pair / job.heads];
  // The last rows first: under a causal mask they take longest.
  const int first = (order.tiles - 1 - place.tile) * kRows;
  if (first >= s.q_rows) return;
  const Sight sight = sight_of(job, s);

  // What rows [from, to) see: some of them, and all of them.
  const auto some = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_seeing);
    return from < to ? sight.of_some(from, to - 1) : KeyRange{0, 0};
  };
  const auto all = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_rows);
    return from < to && to <= s.q_seeing ? sight.of_all(from, to - 1) : KeyRange{0, 0};
  };
  const int warp = warp_number(), mine = first + kWarpRows * warp;
  const KeyRange keys = some(first, first + kRows), all_see = all(first, first + kRows);
  const KeyRange warp_some = some(mine, mine + kWarpRows), warp_all = all(mine, mine + kWarpRows);

  const auto load_keys = [&](const FloatTile<kSize>& to, const Rows& x, int size, int key) {
    if (key < keys.end) {
      to.template load<kKeys, kRows>(x.at<const float>(s.k_batch, key_head, s.k_start + key), x.row,
                                     keys.end - key, size);
    }
    end_group();
  };
  if (keys.begin < keys.end) {
    q.template load<kRows, kRows>(job.q.at<const float>(s.q_batch, head, s.q_start + first),
                                  job.q.row, min(s.q_rows, s.q_seeing) - first, job.head_size);
    load_keys(k, job.k, job.head_size, keys.begin);
    load_keys(v, job.v, job.value_size, keys.begin);
    wait_for_groups<1>();
    __syncthreads();
    q.template pack_left<kRows, kRows>();
  }

  OnlineSoftmax softmax[kBlocks];
  NoWatch watch;
  const float scale = job.scale * kLog2e;
  Accumulators<kBlocks, kSize> sums = {};
  bool strange = false;
#pragma unroll 1
  for (int key = keys.begin; key < keys.end; key += kKeys) {
    const bool sees = meet(warp_some, key, key + kKeys);
    Accumulators<kBlocks, kKeys> weights;
    wait_for_groups<1>();
    __syncthreads();  // everybody's keys are there
    if (sees) {
      clear<kBlocks, kKeys>(weights);
#pragma unroll
      for (int c = 0; c < kSize / 16; ++c) {
        multiply_rows<kBlocks, kKeys>(lane, c, q, kWarpRows * warp, k, weights);
      }
    }
    __syncthreads();  // nobody needs them any more
    load_keys(k, job.k, job.head_size, key + kKeys);
    if (sees) {
      if (!contains(warp_all, key, key + kKeys)) {
        const LaneSight seen(sight, s, mine);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) hide(weights[m], seen.seen[m], key, -kInfinity);
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        float factor[2];
        if (!softmax[m].step(weights[m], scale, factor, watch)) continue;
#pragma unroll
        for (int i = 0; i < kSize / 2; ++i) sums[m][i] *= factor[i / 2 % 2];
      }
    }
    wait_for_groups<1>();
    if (contains(all_see, key, key + kKeys)) {
      __syncthreads();  // values are there
    } else if (__syncthreads_or(!v.template is_all_tame<kKeys, kRows>()) != 0) {
      strange = true;
      v.template clean<kKeys, kRows>();
      __syncthreads();
    }
    if (sees) add_products<kBlocks, kKeys>(lane, weights, v, sums);
    __syncthreads();
    load_keys(v, job.v, job.value_size, key + kKeys);
  }

  if (strange) add_strange<kSize>(job, s, key_head, keys, LaneSight(sight, s, mine), sums);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    float row_lse[2];
    softmax[m].finish(scale, row_lse);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = mine + 16 * m + lane_row(half);
      if (i >= s.q_rows) continue;
      const float total = softmax[m].sum[half];
      float share = 1 / total;
      if (total == 0) {  // it sees nothing, or only scores of -inf
        share = 0;
#pragma unroll
        for (int n = 0; n < kSize / 4; ++n) sums[m][n / 2 * 4 + 2 * half + n % 2] = 0;
        const KeyRange seen = i < s.q_seeing ? sight.of(i) : KeyRange{0, 0};
        if (job.sinks != nullptr && seen.begin < seen.end) row_lse[half] = job.sinks[head];
      } else if (job.sinks != nullptr) {
        row_lse[half] = with_sink(job.sinks[head], row_lse[half], share);
      }
      store_sums<kSize>(sums[m], half, share, out.at<float>(s.q_batch, head, s.q_start + i),
                        job.value_size);
      if (threadIdx.x % 4 == 0) lse[job.lse_row(s, head, i)] = row_lse[half];
    }
  }
}

}  // namespace

std::int64_t tf32_forward_bytes(std::int64_t size) {
  return dispatch_tf32_size(size, [&]<int kSize>() { return ForwardPlan<kSize>::kBytes; });
}

void tf32_forward(const AttentionJob& job, const AttentionGrid& grid, const Rows& out, float* lse,
                  cudaStream_t stream) {
  dispatch_tf32_size(std::max(job.head_size, job.value_size), [&]<int kSize>() {
    using Plan = ForwardPlan<kSize>;
    const WorkOrder order(job, grid, grid.row_tiles(Plan::kRows), job.heads, grid.longest_k);
    auto* kernel = tf32_forward_kernel<kSize>;
    allow_shared(reinterpret_cast<const void*>(kernel), Plan::kBytes);
    kernel<<<order.blocks(), Plan::kRows, Plan::kBytes, stream>>>(job, order, out, lse);
  });
  check_launch("attention");
}

}  // namespace qkv::cuda
