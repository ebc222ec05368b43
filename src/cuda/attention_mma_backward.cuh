// Attention backward by matrix instructions: one kernel for dq and one for dk and dv, which are two
// views of the same computation; for heads above 128 one for each, since registers hold one result.
// A block has rows of its own (queries; keys), which stay in shared memory with their results in
// registers, and walks over those that they see (keys; queries), which pass. Every sum has one
// order, and nothing is S x S.
//
//   stay   pass    p = e^(scale stay1 pass1^T - lse)      results
//   q, dout  k, v    ds = p (stay2 pass2^T + base)          dq = scale ds k
//   k, v     q, dout                                        dk = scale ds q, dv = p dout
#pragma once

#include "cuda/attention_mma_gradient.cuh"

namespace qkv::cuda {

enum class Gradient { dq, dk, dv, dk_and_dv };

template <class T, int kSize>
struct BackwardPlan {
  static constexpr bool kWide = kSize > 64;
  // Registers hold two results of 32 rows up to size 64, of 16 beyond and of exact floats.
  static constexpr int kBlocks = kWide || kExact<T> ? 1 : 2;
  static constexpr int kWarps = kWide ? 8 : 4, kAtOnce = kWide ? 1 : kExact<T> ? 3 : 2;
  static constexpr int kThreads = 32 * kWarps, kWarpRows = 16 * kBlocks;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kColumns = 32, kStages = 2;  // of what passes
  static constexpr int kElements = 2 * (kRows + kStages * kColumns) * kSize;
  static constexpr int kNumbers = kTerms<T> * kStages * kColumns;  // of queries that pass
  static constexpr int kBytes =
      kElements * static_cast<int>(sizeof(T)) + kNumbers * static_cast<int>(sizeof(float));
};

template <class T, int kSize, Gradient kOf, bool kStaged>
__global__ void __launch_bounds__(BackwardPlan<T, kSize>::kThreads, BackwardPlan<T, kSize>::kAtOnce)
    mma_backward_kernel(const __grid_constant__ AttentionJob job, WorkOrder order,
                        const __grid_constant__ MmaBackward x) {
  using Plan = BackwardPlan<T, kSize>;
  using Tile = WarpTile<T, kSize>;
  constexpr bool kOfKeys = kOf != Gradient::dq, kOfScores = kOf != Gradient::dv;
  constexpr bool kOfValues = kOf == Gradient::dv || kOf == Gradient::dk_and_dv;
  constexpr int kRows = Plan::kRows, kWarpRows = Plan::kWarpRows, kBlocks = Plan::kBlocks;
  constexpr int kColumns = Plan::kColumns, kStages = Plan::kStages;
  using Stages = PairStages<kOfKeys ? kColumns : kRows, kOfKeys ? kRows : kColumns>;
  using Pairs = PairBlock<kOfKeys, kColumns, !kStaged ? 0 : kOfKeys ? kRows : kColumns>;
  extern __shared__ __align__(128) char room[];
  const Tile stay1{reinterpret_cast<T*>(room)}, stay2{stay1.data + kRows * kSize};
  T* const passing = stay2.data + kRows * kSize;
  const auto pass1 = [&](int stage) { return Tile{passing + 2 * stage * kColumns * kSize}; };
  const auto pass2 = [&](int stage) { return Tile{passing + (2 * stage + 1) * kColumns * kSize}; };
  // [stage][term][column]
  auto* const numbers = reinterpret_cast<float*>(passing + 2 * kStages * kColumns * kSize);
  const Stages stages{room + Plan::kBytes};

  const LaneReader<T, kSize> lane;
  const int thread = static_cast<int>(threadIdx.x), t = thread % 4;
  const Place place(order);
  const int own_head = place.head, sequence = place.sequence;
  const Sequence s = job.sequences[sequence];
  // First those that take longest under a causal mask: the last queries, the first keys.
  const int first = (kOfKeys ? place.tile : order.tiles - 1 - place.tile) * kRows;
  const int rows = kOfKeys ? s.k_rows : s.q_rows;
  if (first >= rows) return;
  const BandMask band = band_of(job, s);
  const bool hides = kPairOptions<T> && hides_pairs(job);
  const int seeing = kOfKeys ? band.visible : s.q_seeing;  // rows from here on see nothing
  const auto sees = [&](int row) -> KeyRange {
    if (row >= seeing) return {0, 0};
    return kOfKeys ? band.rows_of(row, s.q_seeing) : band.of(row);
  };
  // Of rows [from, to): what some of them see, and what all of them see.
  const auto some = [&](int from, int to) -> KeyRange {
    to = min(to, seeing);
    return from < to ? KeyRange{sees(from).begin, sees(to - 1).end} : KeyRange{0, 0};
  };
  const auto all = [&](int from, int to) -> KeyRange {
    to = min(to, rows);
    return from < to && to <= seeing && !hides ? KeyRange{sees(to - 1).begin, sees(from).end}
                                               : KeyRange{0, 0};
  };
  const int warp = warp_number(), mine = first + kWarpRows * warp;
  KeyRange range = some(first, first + kRows);
  if (kPairOptions<T>) {
    constexpr int kAligned = kOfKeys ? kQueriesAligned : kKeysAligned;
    range.begin = range.begin / kAligned * kAligned;
  }
  const KeyRange all_see = all(first, first + kRows);
  const KeyRange warp_some = some(mine, mine + kWarpRows), warp_all = all(mine, mine + kWarpRows);
  const int tiles = max(0, (range.end - range.begin + kColumns - 1) / kColumns);
  const int steps = kOfKeys ? tiles * job.group : tiles;

  // Step n has tile n % tiles of what passes; of keys, for each head of the group in turn.
  const auto position = [&](int n) { return range.begin + n % tiles * kColumns; };
  const auto query_head = [&](int n) {
    return kOfKeys ? own_head * job.group + n / tiles : own_head;
  };
  const auto load_step = [&](int n) {
    if (n >= steps) return;
    const int at = position(n), stage = n % kStages, count = range.end - at;
    const int head = kOfKeys ? query_head(n) : own_head / job.group;
    const Rows &a = kOfKeys ? job.q : job.k, &b = kOfKeys ? x.tensors.dout : job.v;
    const int batch = kOfKeys ? s.q_batch : s.k_batch, row = (kOfKeys ? s.q_start : s.k_start) + at;
    pass1(stage).template load<kColumns, Plan::kThreads>(a.at<const T>(batch, head, row), a.row,
                                                         count, job.head_size);
    pass2(stage).template load<kColumns, Plan::kThreads>(b.at<const T>(batch, head, row), b.row,
                                                         count, job.value_size);
    if (kOfKeys && thread < kTerms<T> * kColumns) {
      const int column = thread % kColumns, term = thread / kColumns;
      const float* const from = term == kShift  ? x.shift
                                : term == kBase ? x.rows.base
                                                : x.rows.share;
      const bool present = column < count;
      copy_word_later(numbers + kTerms<T> * stage * kColumns + thread,
                      from + job.lse_row(s, head, at + (present ? column : 0)), present);
    }
    if constexpr (kStaged) {
      stages.template load<Plan::kThreads>(job, s, query_head(n), kOfKeys ? at : first,
                                           kOfKeys ? first : at, stage);
    }
    end_group();
  };

  [[maybe_unused]] bool wild_stay = false;  // some of stay1 do not split well
  float terms[kTerms<T>][kBlocks][2] = {};  // of queries that stay
  if (steps > 0) {
    const Rows &a = kOfKeys ? job.k : job.q, &b = kOfKeys ? job.v : x.tensors.dout;
    const int batch = kOfKeys ? s.k_batch : s.q_batch;
    const int row = (kOfKeys ? s.k_start : s.q_start) + first;
    stay1.template load<kRows, Plan::kThreads>(a.at<const T>(batch, own_head, row), a.row,
                                               seeing - first, job.head_size);
    if constexpr (kOfScores) {
      stay2.template load<kRows, Plan::kThreads>(b.at<const T>(batch, own_head, row), b.row,
                                                 seeing - first, job.value_size);
    }
    load_step(0);
    wait_for_groups<0>();
    __syncthreads();
    if constexpr (kExact<T>) {
      wild_stay = __syncthreads_or(!stay1.template all_splits_well<kRows, Plan::kThreads>()) != 0;
    }
    stay1.template pack_left<kRows, Plan::kThreads>();
    if constexpr (kOfScores) stay2.template pack_left<kRows, Plan::kThreads>();
    if constexpr (!kOfKeys) {
#pragma unroll
      for (int r = 0; r < 2 * kBlocks; ++r) {
        const int i = mine + r / 2 * 16 + lane_row(r % 2);
        if (i >= rows) continue;
        const std::int64_t row = job.lse_row(s, own_head, i);
        terms[kShift][r / 2][r % 2] = x.shift[row];
        terms[kBase][r / 2][r % 2] = x.rows.base[row];
        if constexpr (kTerms < T >> kShare) terms[kShare][r / 2][r % 2] = x.rows.share[row];
      }
    }
  }

  Accumulators<kBlocks, kSize> sums1 = {}, sums2 = {};  // of ds, and of p for dv
#pragma unroll 1
  for (int n = 0; n < steps; ++n) {
    const int at = position(n), stage = n % kStages;
    const bool sees_some = meet(warp_some, at, at + kColumns);
    // 0 times what is not finite would be felt by who does not see it.
    const auto is_tame_step = [&] {
      bool tame = pass1(stage).template is_all_tame<kColumns, Plan::kThreads>();
      if (kOfKeys) tame &= pass2(stage).template is_all_tame<kColumns, Plan::kThreads>();
      return tame;
    };
    [[maybe_unused]] bool wild = false;
    wait_for_groups<0>();
    // This step's tiles are there, and nobody needs the last one's.
    if constexpr (kExact<T>) {
      const bool well = pass1(stage).template all_splits_well<kColumns, Plan::kThreads>();
      wild = __syncthreads_or(!well || !is_tame_step()) != 0;
    } else {
      __syncthreads();
    }
    load_step(n + 1);
    if (!kExact<T> && !contains(all_see, at, at + kColumns) && !is_tame_step()) *x.failed = 1;
    if (!sees_some && !wild) continue;
    Accumulators<kBlocks, kColumns> p, ds;
    clear<kBlocks, kColumns>(p);
    clear<kBlocks, kColumns>(ds);
#pragma unroll
    for (int c = 0; c < kSize / 16; ++c) {
      if (!is_padding<kSize>(c, job.head_size)) {
        multiply_rows<kBlocks, kColumns, kOfKeys>(lane, c, stay1, kWarpRows * warp, pass1(stage),
                                                  p);
      }
      if (kOfScores && !is_padding<kSize>(c, job.value_size)) {
        multiply_rows<kBlocks, kColumns, kOfKeys>(lane, c, stay2, kWarpRows * warp, pass2(stage),
                                                  ds);
      }
    }
    // A term of two neighbouring columns, the first of which is the lane's 2 i-th, in both rows.
    const auto terms_of = [&](int term, int m, int i, float(&to)[2][2]) {
      if constexpr (kOfKeys) {
        const float2 two = *reinterpret_cast<const float2*>(
            numbers + (kTerms<T> * stage + term) * kColumns + 8 * i + 2 * t);
        to[0][0] = to[1][0] = two.x, to[0][1] = to[1][1] = two.y;
      } else {
        to[0][0] = to[0][1] = terms[term][m][0], to[1][0] = to[1][1] = terms[term][m][1];
      }
    };
    const bool sees_all = contains(warp_all, at, at + kColumns);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      Pairs pairs{sequence, query_head(n), mine + 16 * m, at};
      if constexpr (kStaged) {
        const int block = kWarpRows * warp + 16 * m;
        pairs.staged = stages.at(job, stage, kOfKeys ? 0 : block, kOfKeys ? block : 0);
      }
      const auto terms_of_block = [&](int term, int i, float(&to)[2][2]) {
        terms_of(term, m, i, to);
      };
      if (kExact<T> && (wild || wild_stay)) multiply_wild<T>(job, s, pairs, p[m]);
      PairGradient<T, Pairs, kColumns> gradient{job, s, pairs};
      if (!sees_all) {
        const int row = mine + 16 * m;
        gradient.see({sees(row + lane_row(0)), sees(row + lane_row(1))});
      }
      gradient.make(p[m], ds[m], terms_of_block, true);
    }
    if (kExact<T> && wild) {
      __syncthreads();  // everybody has made products of it
      if constexpr (kOfValues) {
        const int head = query_head(n);
        const auto dout = [&](int i) {
          return x.tensors.dout.at<const T>(s.q_batch, head, s.q_start + i);
        };
        const auto is_seen = [&](int key, int i) {
          return key < s.k_rows && sees_pair(job, s, sequence, head, i, key);
        };
        const KeyRange queries{at, min(at + kColumns, range.end)};
        add_strange<T, kSize>(queries, dout, job.value_size, mine, is_seen, sums2);
        __syncthreads();
        pass2(stage).template clean<kColumns, Plan::kThreads>();
      }
      pass1(stage).template clean<kColumns, Plan::kThreads>();
      __syncthreads();
    }
    if constexpr (kOfValues) {
      add_products<kBlocks, kColumns>(lane, p, pass2(stage), job.value_size, sums2);
    }
    if constexpr (kOfScores) {
      add_products<kBlocks, kColumns>(lane, ds, pass1(stage), job.head_size, sums1);
    }
  }

#pragma unroll
  for (int r = 0; r < 2 * kBlocks; ++r) {
    const int row = mine + r / 2 * 16 + lane_row(r % 2);
    if (row >= rows) continue;
    const Rows& to = kOfKeys ? x.tensors.dk : x.tensors.dq;
    const int batch = kOfKeys ? s.k_batch : s.q_batch;
    const int place = (kOfKeys ? s.k_start : s.q_start) + row;
    if constexpr (kOfScores) {
      store_sums<T, kSize>(sums1[r / 2], r % 2, job.scale, to.at<T>(batch, own_head, place),
                           job.head_size);
    }
    if constexpr (kOfValues) {
      store_sums<T, kSize>(sums2[r / 2], r % 2, kPairOptions<T> ? job.dropout.kept : 1.0f,
                           x.tensors.dv.at<T>(batch, own_head, place), job.value_size);
    }
  }
}

template <class T>
void launch_mma_backward(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                         cudaStream_t stream) {
  dispatch_size<T>(std::max(job.head_size, job.value_size), [&]<class, int kSize>() {
    using Plan = BackwardPlan<T, kSize>;
    const auto run = [&]<Gradient kOf, bool kStaged>(int bytes) {
      constexpr bool kOfKeys = kOf != Gradient::dq;
      const unsigned tiles = kOfKeys ? grid.key_tiles(Plan::kRows) : grid.row_tiles(Plan::kRows);
      const WorkOrder order(job, grid, tiles, kOfKeys ? job.heads / job.group : job.heads,
                            kOfKeys ? grid.longest_q * job.group : grid.longest_k, sizeof(T));
      auto* kernel = mma_backward_kernel<T, kSize, kOf, kStaged>;
      allow_shared(reinterpret_cast<const void*>(kernel), bytes);
      kernel<<<order.blocks(), Plan::kThreads, bytes, stream>>>(job, order, x);
    };
    const auto run_either = [&]<Gradient kOf>() {
      if constexpr (kHalves<T>) {
        constexpr bool kOfKeys = kOf != Gradient::dq;
        using Stages = PairStages<kOfKeys ? Plan::kColumns : Plan::kRows,
                                  kOfKeys ? Plan::kRows : Plan::kColumns>;
        const int bytes = Plan::kBytes + Stages::bytes(job);
        if (job.stages_pairs && bytes <= most_shared()) {
          return run.template operator()<kOf, true>(bytes);
        }
      }
      run.template operator()<kOf, false>(Plan::kBytes);
    };
    run_either.template operator()<Gradient::dq>();
    if constexpr (kSize > 128) {
      run_either.template operator()<Gradient::dk>();
      run_either.template operator()<Gradient::dv>();
    } else {
      run_either.template operator()<Gradient::dk_and_dv>();
    }
  });
}

}  // namespace qkv::cuda
