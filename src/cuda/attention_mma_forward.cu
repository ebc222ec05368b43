// Attention forward by matrix instructions. A warp has 16 or 32 queries of one head; weights stay
// in registers. A block's queries, and one tile each of keys and values, are in shared memory: the
// next keys arrive while values are multiplied, and values while keys are.
#include "cuda/attention_mma.cuh"

namespace qkv::cuda {
namespace {

// Of f32 a warp has 32 queries, so that what it reads of keys and values serves two products each.
// Of 16 bits it has 16: what is done to pairs waits less if more warps share a multiprocessor.
template <class T, int kSize>
struct ForwardPlan {
  static constexpr int kBlocks = kPairOptions<T> ? 1 : 2, kWarpRows = 16 * kBlocks;
  static constexpr int kWarps = 8 / kBlocks, kThreads = 32 * kWarps;
  static constexpr int kKeys = kSize > 64 && !kPairOptions<T> ? 32 : 64;
  static constexpr int kAtOnce = kSize > 64 && kPairOptions<T> ? 1 : 2;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kBytes = (kRows + 2 * kKeys) * kSize * static_cast<int>(sizeof(T));
};

// Whether query i sees key j: the whole of it, also what is not an interval.
__device__ bool sees_pair(const AttentionJob& job, const Sequence& s, int sequence, int head, int i,
                          int j) {
  return i < s.q_rows && is_visible(job, s, head, i, j) &&
         (job.bias.data == nullptr || bias_of(job, s, sequence, head, i, j) != -INFINITY);
}

// Tiles in which a pair is hidden have zeros in the place of values that are not finite, so that
// who does not see them does not feel them. They are added here to the rows that do: a weight times
// NaN or Inf is NaN or Inf.
template <class T, int kSize, int kBlocks>
__device__ void add_strange(const AttentionJob& job, const Sequence& s, int sequence, int head,
                            const KeyRange& keys, int first, Accumulators<kBlocks, kSize>& sums) {
  using Lane = LaneReader<T, kSize>;
#pragma unroll 1
  for (int key = keys.begin; key < keys.end; ++key) {
    const T* const row = job.v.at<const T>(s.k_batch, head / job.group, s.k_start + key);
    bool sees[kBlocks][2];
#pragma unroll
    for (int r = 0; r < 2 * kBlocks; ++r) {
      const int i = first + r / 2 * 16 + lane_row(r % 2);
      sees[r / 2][r % 2] = sees_pair(job, s, sequence, head, i, key);
    }
#pragma unroll
    for (int n = 0; n < kSize / 4; ++n) {
      const int column = Lane::sum_column(n);
      const float value = column < job.value_size ? to_float(row[column]) : 0.0f;
      if (isfinite(value)) continue;
#pragma unroll
      for (int r = 0; r < 2 * kBlocks; ++r) {
        if (sees[r / 2][r % 2]) sums[r / 2][Lane::sum_index(n) + r % 2 * 2] += value;
      }
    }
  }
}

template <class T, int kSize, bool kStaged>
__global__ void __launch_bounds__(ForwardPlan<T, kSize>::kThreads, ForwardPlan<T, kSize>::kAtOnce)
    mma_forward_kernel(const __grid_constant__ AttentionJob job, WorkOrder order, Rows out,
                       float* lse) {
  using Plan = ForwardPlan<T, kSize>;
  using Tile = WarpTile<T, kSize>;
  constexpr int kRows = Plan::kRows, kKeys = Plan::kKeys, kThreads = Plan::kThreads;
  constexpr int kBlocks = Plan::kBlocks, kWarpRows = Plan::kWarpRows;
  using Pairs = PairBlock<false, kKeys, kStaged ? kKeys : 0>;
  extern __shared__ __align__(128) char room[];
  const Tile q{reinterpret_cast<T*>(room)}, k{q.data + kRows * kSize}, v{k.data + kKeys * kSize};
  const PairStages<kRows, kKeys> stages{room + Plan::kBytes};
  const LaneReader<T, kSize> lane;
  const Place place(order);
  const int head = place.head, key_head = head / job.group, sequence = place.sequence;
  const Sequence s = job.sequences[sequence];
  // The last rows first: under a causal mask they take longest.
  const int first = (order.tiles - 1 - place.tile) * kRows;
  if (first >= s.q_rows) return;
  const Sight sight = sight_of(job, s);
  const bool changes = kPairOptions<T> && changes_scores(job);
  const bool hides = kPairOptions<T> && hides_pairs(job);

  // What rows [from, to) see: some of them, and all of them.
  const auto some = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_seeing);
    return from < to ? sight.of_some(from, to - 1) : KeyRange{0, 0};
  };
  const auto all = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_rows);
    return from < to && to <= s.q_seeing && !hides ? sight.of_all(from, to - 1) : KeyRange{0, 0};
  };
  const int warp = warp_number(), mine = first + kWarpRows * warp;
  KeyRange keys = some(first, first + kRows);
  if (kPairOptions<T>) keys.begin = keys.begin / kKeysAligned * kKeysAligned;
  const KeyRange all_see = all(first, first + kRows);
  const KeyRange warp_some = some(mine, mine + kWarpRows), warp_all = all(mine, mine + kWarpRows);

  const auto load_keys = [&](const Tile& to, const Rows& x, int size, int key) {
    if (key < keys.end) {
      to.template load<kKeys, kThreads>(x.at<const T>(s.k_batch, key_head, s.k_start + key), x.row,
                                        keys.end - key, size);
    }
    end_group();
  };
  // With the keys of a tile, before their group ends.
  const auto load_pairs = [&](int key) {
    if (kStaged && key < keys.end) {
      stages.template load<kThreads>(job, s, head, first, key, (key - keys.begin) / kKeys % 2);
    }
  };
  if (keys.begin < keys.end) {
    q.template load<kRows, kThreads>(job.q.at<const T>(s.q_batch, head, s.q_start + first),
                                     job.q.row, min(s.q_rows, s.q_seeing) - first, job.head_size);
    load_pairs(keys.begin);
    load_keys(k, job.k, job.head_size, keys.begin);
    load_keys(v, job.v, job.value_size, keys.begin);
    wait_for_groups<1>();
    __syncthreads();
    q.template pack_left<kRows, kThreads>();
  }

  OnlineSoftmax softmax[kBlocks];
  NoWatch watch;
  const float scale = changes ? kLog2e : job.scale * kLog2e;
  Accumulators<kBlocks, kSize> sums = {};
  bool strange = false;
  std::uint32_t seen[kBlocks][2] = {};  // not 0 where a row sees something, if pairs may be hidden
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
    load_pairs(key + kKeys);
    load_keys(k, job.k, job.head_size, key + kKeys);
    if (sees) {
      const bool sees_all = contains(warp_all, key, key + kKeys);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        Pairs pairs{sequence, head, mine + 16 * m, key};
        if constexpr (kStaged) {
          const int stage = (key - keys.begin) / kKeys % 2;
          pairs.staged = stages.at(job, stage, kWarpRows * warp + 16 * m, 0);
        }
        if (changes) Pairs::scale_scores(job, weights[m]);
        if (sees_all) {
          PairBits bits{{Pairs::kAll, Pairs::kAll}};
          if (changes) pairs.add_bias(job, s, weights[m], bits);
        } else {
          PairBits bits = pairs.seen_in(rows_seen(sight, s, mine + 16 * m).of);
          if constexpr (kPairOptions<T>) {
            pairs.apply_mask(job, s, bits);
            if (changes) pairs.add_bias(job, s, weights[m], bits);
            seen[m][0] |= bits.of[0];
            seen[m][1] |= bits.of[1];
          }
          Pairs::keep_only(weights[m], bits, -kInfinity);
        }
        float factor[2];
        if (softmax[m].step(weights[m], scale, factor, watch)) {
#pragma unroll
          for (int i = 0; i < kSize / 2; ++i) sums[m][i] *= factor[i / 2 % 2];
        }
        if (kPairOptions<T> && job.has_dropout) {
          Pairs::keep_only(weights[m], pairs.kept(job), 0.0f);
        }
      }
    }
    wait_for_groups<1>();
    if (contains(all_see, key, key + kKeys)) {
      __syncthreads();  // values are there
    } else if (__syncthreads_or(!v.template is_all_tame<kKeys, kThreads>()) != 0) {
      strange = true;
      v.template clean<kKeys, kThreads>();
      __syncthreads();
    }
    if (sees) add_products<kBlocks, kKeys>(lane, weights, v, sums);
    __syncthreads();
    load_keys(v, job.v, job.value_size, key + kKeys);
  }

  if (strange) add_strange<T, kSize, kBlocks>(job, s, sequence, head, keys, mine, sums);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    float row_lse[2];
    softmax[m].finish(scale, row_lse);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = mine + 16 * m + lane_row(half);
      const bool has_seen = quad_or(seen[m][half]) != 0;
      if (i >= s.q_rows) continue;
      const float total = softmax[m].sum[half];
      float share = kPairOptions<T> ? job.kept / total : 1 / total;
      if (total == 0) {  // it sees nothing, or only scores of -inf
        share = 0;
#pragma unroll
        for (int n = 0; n < kSize / 4; ++n) sums[m][n / 2 * 4 + 2 * half + n % 2] = 0;
        const KeyRange range = i < s.q_seeing ? sight.of(i) : KeyRange{0, 0};
        const bool sees = hides ? has_seen : range.begin < range.end;
        if (job.sinks != nullptr && sees) row_lse[half] = job.sinks[head];
      } else if (job.sinks != nullptr) {
        row_lse[half] = with_sink(job.sinks[head], row_lse[half], share);
      }
      store_sums<T, kSize>(sums[m], half, share, out.at<T>(s.q_batch, head, s.q_start + i),
                           job.value_size);
      if (threadIdx.x % 4 == 0) lse[job.lse_row(s, head, i)] = row_lse[half];
    }
  }
}

}  // namespace

std::int64_t mma_forward_bytes(DType dtype, std::int64_t size) {
  return dispatch_mma(dtype, size,
                      [&]<class T, int kSize>() { return ForwardPlan<T, kSize>::kBytes; });
}

void mma_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype, const Rows& out,
                 float* lse, cudaStream_t stream) {
  dispatch_mma(dtype, std::max(job.head_size, job.value_size), [&]<class T, int kSize>() {
    using Plan = ForwardPlan<T, kSize>;
    const WorkOrder order(job, grid, grid.row_tiles(Plan::kRows), job.heads, grid.longest_k,
                          sizeof(T));
    const auto run = [&]<bool kStaged>(int bytes) {
      auto* kernel = mma_forward_kernel<T, kSize, kStaged>;
      allow_shared(reinterpret_cast<const void*>(kernel), bytes);
      kernel<<<order.blocks(), Plan::kThreads, bytes, stream>>>(job, order, out, lse);
    };
    if constexpr (kPairOptions<T>) {
      const int bytes = Plan::kBytes + PairStages<Plan::kRows, Plan::kKeys>::bytes(job);
      if (job.stages_pairs && bytes <= most_shared()) return run.template operator()<true>(bytes);
    }
    run.template operator()<false>(Plan::kBytes);
  });
  check_launch("attention");
}

}  // namespace qkv::cuda
