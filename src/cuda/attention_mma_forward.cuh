// Attention forward by matrix instructions. A warp has 16 or 32 queries of one head; weights stay
// in registers. A block's queries, and one or two tiles of keys and values, are in shared memory.
#pragma once

#include "cuda/attention_mma_watch.cuh"

namespace qkv::cuda {

// Of TF32 a warp has 32 queries, so that what it reads of keys and values serves two products each.
// Of others it has 16: what is done to pairs, and products that wait for one another, wait less if
// more warps share a multiprocessor.
template <class T, int kSize>
struct ForwardPlan {
  static constexpr int kBlocks = kPairOptions<T> ? 1 : 2;
  static constexpr int kWarpRows = 16 * kBlocks;
  static constexpr int kWarps = kHalves<T> ? 8 : 4, kThreads = 32 * kWarps;
  static constexpr int kKeys = kSize > (kHalves<T> ? 128 : 64) ? 32 : 64;
  static constexpr int kAtOnce = kExact<T>                  ? (kSize > 96 ? 2 : 3)
                                 : kSize > 64 && kHalves<T> ? 1
                                                            : 2;
  static constexpr int kRows = kWarpRows * kWarps;
  // One tile of keys and values: the next keys arrive while values are multiplied, and values while
  // keys are. Two tiles: the next one arrives while this one is multiplied, and warps meet once for
  // each. For that, floats have no room in shared memory, and heads of 64 no registers; heads of
  // 256 gain nothing, and have room on smaller GPUs without.
  static constexpr int kStages = kHalves<T> && kSize == 128 ? 2 : 1;
  static constexpr int kBytes = (kRows + 2 * kStages * kKeys) * kSize * static_cast<int>(sizeof(T));
};

// 16 queries of a warp: from products to weights, tile by tile, and what is left at the end.
template <class T, int kSize, bool kWatched>
struct QueryBlock {
  OnlineSoftmax softmax;
  std::conditional_t<kWatched, PairWatch, NoWatch> watch;
  std::uint32_t seen[2] = {};  // not 0 where a row sees something, if pairs may be hidden

  __device__ static bool changes(const AttentionJob& job) {
    return kPairOptions<T> && changes_scores(job);
  }
  __device__ static bool hides(const AttentionJob& job) {
    return kPairOptions<T> && hides_pairs(job);
  }
  // Of the scores that the softmax gets: what makes them the user's.
  __device__ static float unit(const AttentionJob& job) { return changes(job) ? 1.0f : job.scale; }

  // Products to weights. Sums of values are rescaled where a maximum moves.
  template <class Pairs, int kCount>
  __device__ __forceinline__ void weigh(const AttentionJob& job, const Sequence& s,
                                        const BandMask& band, bool sees_all, const Pairs& pairs,
                                        float (&x)[kCount], float (&sums)[kSize / 2]) {
    PairBits bits{{Pairs::kAll, Pairs::kAll}};
    if (!sees_all) {
      bits = pairs.seen_in(rows_seen(band, s, pairs.row).of);
      if (kPairOptions<T>) pairs.apply_mask(job, s, bits);
    }
    if constexpr (kWatched) {
      if (kPairOptions<T>) pairs.apply_bias(job, s, bits);
      watch.template see_logits<Pairs>(x, bits);
    }
    if (changes(job)) {
      Pairs::template scale_scores<kExact<T>>(job, x);
      pairs.add_bias(job, s, x, bits);
    }
    if constexpr (kWatched) {
      watch.key0 = pairs.column;
      watch.template see_scores<Pairs, kExact<T>>(x, bits);
    }
    if (!sees_all) {
      seen[0] |= bits.of[0];
      seen[1] |= bits.of[1];
      Pairs::keep_only(x, bits, -kInfinity);
    }
    float factor[2];
    if (softmax.step(x, unit(job) * kLog2e, factor, watch)) {
#pragma unroll
      for (int i = 0; i < kSize / 2; ++i) sums[i] *= factor[i / 2 % 2];
    }
    if (kPairOptions<T> && job.has_dropout) Pairs::keep_only(x, pairs.kept(job.dropout), 0.0f);
  }

  // Beyond this e^(sink - maximum) might become infinite.
  static constexpr float kLargeSink = 60;
  // Of a sum relative to the maximum. Of the scale itself, not as it is rounded for exponents, and
  // with all digits there are: what it is off by backward's weights are off by.
  __device__ float exact_lse(const AttentionJob& job, int r, float sum) const {
    return fmaf(softmax.maximum[r], unit(job), logf(sum));
  }

  // Outputs, lse and what scores have told of queries first .. first + 15.
  __device__ void store(const AttentionJob& job, const Sequence& s, const BandMask& band, int head,
                        int first, float (&sums)[kSize / 2], const MmaForward& to) {
    float lse[2];
    [[maybe_unused]] float own[2];  // of exact floats: what the maximum's exponent is, but for 0
    softmax.finish(unit(job) * kLog2e, lse);
    if constexpr (kExact<T>) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        own[r] = softmax.exponent(softmax.maximum[r], softmax.maximum[r], unit(job) * kLog2e);
        if (softmax.sum[r] != 0) lse[r] = exact_lse(job, r, softmax.sum[r] * exp2f(-own[r]));
      }
    }
    RowEnd ends[2];
    if constexpr (kWatched) watch.finish(softmax, unit(job) * kLog2e, ends);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + lane_row(r);
      const bool has_seen = quad_or(seen[r]) != 0;
      if (i >= s.q_rows) continue;
      const float total = softmax.sum[r], keys_lse = lse[r];
      float share = kPairOptions<T> ? job.dropout.kept / total : 1 / total;
      if (total == 0) {  // it sees nothing, or only scores of -inf
        share = 0;
#pragma unroll
        for (int n = 0; n < kSize / 4; ++n) sums[n / 2 * 4 + 2 * r + n % 2] = 0;
        const KeyRange range = i < s.q_seeing ? band.of(i) : KeyRange{0, 0};
        const bool sees = hides(job) ? has_seen : range.begin < range.end;
        if (job.sinks != nullptr && sees) lse[r] = job.sinks[head];
      } else if (job.sinks != nullptr) {
        const float apart = fmaf(-softmax.maximum[r], unit(job), job.sinks[head]);
        if (kExact<T> && !(apart > kLargeSink)) {
          const float of_keys = total * exp2f(-own[r]), whole = of_keys + expf(apart);
          share *= of_keys / whole;
          lse[r] = exact_lse(job, r, whole);
        } else {
          lse[r] = with_sink(job.sinks[head], lse[r], share);
        }
      }
      store_sums<T, kSize>(sums, r, share, to.out.at<T>(s.q_batch, head, s.q_start + i),
                           job.value_size);
      if (threadIdx.x % 4 != 0) continue;
      const std::int64_t at = job.lse_row(s, head, i);
      to.lse[at] = lse[r];
      if constexpr (kWatched) {
        ends[r].lse = keys_lse, ends[r].full_lse = lse[r];
        watch.store(to.rows, at, r, ends[r], job, unit(job));
      }
    }
  }
};

template <class T, int kSize, bool kStaged, bool kWatched>
__global__ void __launch_bounds__(ForwardPlan<T, kSize>::kThreads, ForwardPlan<T, kSize>::kAtOnce)
    mma_forward_kernel(const __grid_constant__ AttentionJob job, WorkOrder order,
                       const __grid_constant__ MmaForward to) {
  using Plan = ForwardPlan<T, kSize>;
  using Tile = WarpTile<T, kSize>;
  constexpr int kRows = Plan::kRows, kKeys = Plan::kKeys, kThreads = Plan::kThreads;
  constexpr int kBlocks = Plan::kBlocks, kWarpRows = Plan::kWarpRows, kStages = Plan::kStages;
  using Pairs = PairBlock<false, kKeys, kStaged ? kKeys : 0>;
  using Block = QueryBlock<T, kSize, kWatched>;
  extern __shared__ __align__(128) char room[];
  const Tile q{reinterpret_cast<T*>(room)};
  const auto k = [&](int stage) {
    return Tile{q.data + (kRows + 2 * (stage % kStages) * kKeys) * kSize};
  };
  const auto v = [&](int stage) { return Tile{k(stage).data + kKeys * kSize}; };
  const PairStages<kRows, kKeys> stages{room + Plan::kBytes};
  const LaneReader<T, kSize> lane;
  const Place place(order);
  const int head = place.head, key_head = head / job.group, sequence = place.sequence;
  const Sequence s = job.sequences[sequence];
  // The last rows first: under a causal mask they take longest.
  const int first = (order.tiles - 1 - place.tile) * kRows;
  if (first >= s.q_rows) return;
  const BandMask band = band_of(job, s);

  // What rows [from, to) see: some of them, and all of them.
  const auto some = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_seeing);
    return from < to ? band.of_some(from, to - 1) : KeyRange{0, 0};
  };
  const auto all = [&](int from, int to) -> KeyRange {
    to = min(to, s.q_rows);
    return from < to && to <= s.q_seeing && !Block::hides(job) ? band.of_all(from, to - 1)
                                                               : KeyRange{0, 0};
  };
  const int warp = warp_number(), mine = first + kWarpRows * warp;
  KeyRange keys = some(first, first + kRows);
  if (kPairOptions<T>) keys.begin = keys.begin / kKeysAligned * kKeysAligned;
  const KeyRange all_see = all(first, first + kRows);
  const KeyRange warp_some = some(mine, mine + kWarpRows), warp_all = all(mine, mine + kWarpRows);

  const auto load_rows = [&](const Tile& to, const Rows& x, int size, int key) {
    to.template load<kKeys, kThreads>(x.at<const T>(s.k_batch, key_head, s.k_start + key), x.row,
                                      keys.end - key, size);
  };
  // And with them what is said of their pairs, for which there are always two stages.
  const auto load_keys = [&](int key, int stage) {
    if (key < keys.end) {
      if (kStaged) stages.template load<kThreads>(job, s, head, first, key, stage);
      load_rows(k(stage), job.k, job.head_size, key);
    }
    end_group();
  };
  const auto load_values = [&](int key, int stage) {
    if (key < keys.end) load_rows(v(stage), job.v, job.value_size, key);
    end_group();
  };
  [[maybe_unused]] bool wild_queries = false;  // some do not split well
  if (keys.begin < keys.end) {
    q.template load<kRows, kThreads>(job.q.at<const T>(s.q_batch, head, s.q_start + first),
                                     job.q.row, min(s.q_rows, s.q_seeing) - first, job.head_size);
    load_keys(keys.begin, 0);
    load_values(keys.begin, 0);
    wait_for_groups<1>();
    if constexpr (kExact<T>) {
      wild_queries = __syncthreads_or(!q.template all_splits_well<kRows, kThreads>()) != 0;
    } else {
      __syncthreads();
    }
    q.template pack_left<kRows, kThreads>();
  }

  Block blocks[kBlocks];
  if constexpr (kWatched) {
#pragma unroll
    for (Block& block : blocks) block.watch.begin(to.rows);
  }
  Accumulators<kBlocks, kSize> sums = {};
  bool strange = false;
  // When this thread's values are there: lets all see them, without what is not finite where that
  // would be felt by who does not see it.
  const auto share_values = [&](int key, int stage) {
    if (!kExact<T> && contains(all_see, key, key + kKeys)) {
      __syncthreads();
    } else if (__syncthreads_or(!v(stage).template is_all_tame<kKeys, kThreads>()) != 0) {
      strange = true;
      v(stage).template clean<kKeys, kThreads>();
      __syncthreads();
    }
  };
  int stage = 0;
#pragma unroll 1
  for (int key = keys.begin; key < keys.end; key += kKeys) {
    const bool sees = meet(warp_some, key, key + kKeys);
    [[maybe_unused]] bool wild = false;
    Accumulators<kBlocks, kKeys> weights;
    if constexpr (kStages > 1) {
      wait_for_groups<0>();
      share_values(key, stage);  // and keys; nobody needs the last tile any more
      load_keys(key + kKeys, stage ^ 1);
      load_values(key + kKeys, stage ^ 1);
    } else {
      wait_for_groups<1>();  // and once everybody's keys are there:
      if constexpr (kExact<T>) {
        const bool well = k(stage).template all_splits_well<kKeys, kThreads>();
        wild = __syncthreads_or(!well) != 0 || wild_queries;
      } else {
        __syncthreads();
      }
    }
    if (sees) {
      multiply_all<kBlocks, kKeys>(lane, q, kWarpRows * warp, k(stage), job.head_size, weights);
    }
    if constexpr (kStages == 1) {
      __syncthreads();  // nobody needs them any more
      load_keys(key + kKeys, stage ^ 1);
    }
    if (sees) {
      const bool sees_all = contains(warp_all, key, key + kKeys);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        Pairs pairs{sequence, head, mine + 16 * m, key};
        if constexpr (kStaged) {
          pairs.staged = stages.at(job, stage, kWarpRows * warp + 16 * m, 0);
        }
        if (kExact<T> && wild) multiply_wild<T>(job, s, pairs, weights[m]);
        blocks[m].weigh(job, s, band, sees_all, pairs, weights[m], sums[m]);
      }
    }
    if constexpr (kStages == 1) {
      wait_for_groups<1>();
      share_values(key, stage);
    }
    if (sees) add_products<kBlocks, kKeys>(lane, weights, v(stage), job.value_size, sums);
    stage ^= 1;
    if constexpr (kStages == 1) {
      __syncthreads();
      load_values(key + kKeys, stage);
    }
  }

  if (strange) {
    const auto value = [&](int key) {
      return job.v.at<const T>(s.k_batch, key_head, s.k_start + key);
    };
    const auto is_seen = [&](int i, int key) { return sees_pair(job, s, sequence, head, i, key); };
    add_strange<T, kSize>(keys, value, job.value_size, mine, is_seen, sums);
  }
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    blocks[m].store(job, s, band, head, mine + 16 * m, sums[m], to);
  }
}

template <class T>
void launch_mma_forward(const AttentionJob& job, const AttentionGrid& grid, const MmaForward& to,
                        cudaStream_t stream) {
  dispatch_size<T>(std::max(job.head_size, job.value_size), [&]<class, int kSize>() {
    using Plan = ForwardPlan<T, kSize>;
    const WorkOrder order(job, grid, grid.row_tiles(Plan::kRows), job.heads, grid.longest_k,
                          sizeof(T));
    const auto run = [&](auto* kernel, int bytes) {
      allow_shared(reinterpret_cast<const void*>(kernel), bytes);
      kernel<<<order.blocks(), Plan::kThreads, bytes, stream>>>(job, order, to);
    };
    const auto run_either = [&]<bool kStaged>(int bytes) {
      if (to.watched) {
        run(mma_forward_kernel<T, kSize, kStaged, true>, bytes);
      } else {
        run(mma_forward_kernel<T, kSize, kStaged, false>, bytes);
      }
    };
    if constexpr (kHalves<T>) {
      const int bytes = Plan::kBytes + PairStages<Plan::kRows, Plan::kKeys>::bytes(job);
      if (job.stages_pairs && bytes <= most_shared()) {
        return run_either.template operator()<true>(bytes);
      }
    }
    run_either.template operator()<false>(Plan::kBytes);
  });
}

}  // namespace qkv::cuda
