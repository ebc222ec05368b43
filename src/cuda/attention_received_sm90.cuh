// What each key receives: the sum of its weights over the query rows. A persistent block holds 256
// keys of one head and walks over the rows that see any of them. Weights are made once more, from
// the terms that the forward pass has left of each row.
//
//   warp 0, one lane   draws Works (a block of keys), copies K, and per tile of rows Q and the
//                      rows' terms
//   warpgroups 1, 2    own 128 keys each, in two halves of 64. Scores stand with keys as rows, so
//                      that the sum of a key stays in the registers of a quad:
//
//     S0^T = K0 Q_n^T                     under way while the weights of S1^T of the tile before
//     S1^T = K1 Q_n^T                     are made; and this one while those of S0^T are
//     P^T  = 2^(S^T - top + share)        [64 keys, Rows], summed over the rows
//
// So each warpgroup has a product under way while it makes exponentials, and the halves read the
// same rows. No sum is shared: a key has one order.
#pragma once

#include "cuda/attention_received_sm90.h"
#include "cuda/tile/barrier.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::received_sm90 {

inline constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
inline constexpr int kConsumerRegisters = 232, kServerRegisters = 40;

template <class Element, int HeadSize, int RowsPerTile, int QStageCount, int KStageCount>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Rows = RowsPerTile;
  static constexpr int QStages = QStageCount, KStages = KStageCount;
  static constexpr int Halves = 2, KeysEach = 64 * Halves;  // of a warpgroup
  static constexpr int Keys = kConsumers * KeysEach;
};

struct Params {
  CUtensorMap q, k;
  const Sm90RowTerms* terms;  // [sequence][head][rows, padded]
  float* to;                  // [k_batches, heads, k_rows]
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  std::uint32_t* ticket;
  int heads, group, k_rows, term_rows;
  int left, right;
  int key_blocks;     // per sequence and head
  int pairs;          // of sequence and head
  int pairs_at_once;  // whose queries share L2
  float scale;        // of scores, times log2(e)
};

// A block of keys and the tiles of rows it visits.
struct Work {
  int pair, head, key0;  // key0 within the sequence; -1: no more work
  int q_batch, k_batch, q_start, k_start;
  int keys;  // that exist, from key0 on
  int seeing;
  BandMask band;
  KeyRange tiles;              // of rows
  KeyRange parts[kConsumers];  // of these, those that a warpgroup takes; it passes over the others
};

template <class S>
struct alignas(1024) Shared {
  typename S::T k[S::KStages][S::Keys * S::D];
  typename S::T q[S::QStages][S::Rows * S::D];
  Sm90RowTerms terms[S::QStages][S::Rows];
  Ring<S::KStages> k_ring;
  Ring<S::QStages> q_ring;
  Ring<2> work_ring;
  Work work[2];
};

// ---- Work ------------------------------------------------------------------------------------

// Tiles of the rows that see some of `count` keys from `key` on.
template <class S>
__device__ KeyRange tiles_seeing(const BandMask& band, int key, int count, int seeing) {
  const int last = min(key + count, band.visible) - 1;
  if (last < key) return {0, 0};
  const int begin = band.rows_of(key, seeing).begin, end = band.rows_of(last, seeing).end;
  if (begin >= end) return {0, 0};
  return {begin / S::Rows, (end + S::Rows - 1) / S::Rows};
}

// The first keys first, which a causal mask shows to most rows; and few heads at a time, so that
// their queries stay in L2.
template <class S>
__device__ void make_work(const Params& p, int ticket, Work& work) {
  const int section = ticket / (p.pairs_at_once * p.key_blocks);
  const int in_section = ticket - section * p.pairs_at_once * p.key_blocks;
  const int pairs = min(p.pairs_at_once, p.pairs - section * p.pairs_at_once);
  work.pair = section * p.pairs_at_once + in_section % pairs;
  work.head = work.pair % p.heads;
  const int index = work.pair / p.heads;
  Sm90Sequence sequence = p.all_alike;
  if (p.sequences)
    sequence = p.sequences[index];
  else
    sequence.q_batch = sequence.k_batch = index;
  work.key0 = in_section / pairs * S::Keys;
  work.q_batch = sequence.q_batch;
  work.k_batch = sequence.k_batch;
  work.q_start = sequence.q_start;
  work.k_start = sequence.k_start;
  work.keys = min(max(sequence.k_rows - work.key0, 0), S::Keys);
  work.seeing = min(sequence.q_seeing, sequence.q_rows);
  work.band = {p.left, p.right, sequence.offset, min(sequence.k_visible, sequence.k_rows)};
  work.tiles = tiles_seeing<S>(work.band, work.key0, S::Keys, work.seeing);
#pragma unroll
  for (int i = 0; i < kConsumers; ++i) {
    const int key = work.key0 + i * S::KeysEach;
    KeyRange part = tiles_seeing<S>(work.band, key, S::KeysEach, work.seeing);
    if (part.begin >= part.end) part = {work.tiles.begin, work.tiles.begin};
    work.parts[i] = part;
  }
}

// ---- Warp 0: copies --------------------------------------------------------------------------

template <class S>
__device__ void serve(const Params& p, Shared<S>& shared) {
  Turn<2> work_turn;
  Turn<S::KStages> k_turn;
  Turn<S::QStages> q_turn;
  const auto copy_rows = [&](const Work& work, int tile) {
    const int row = tile * S::Rows;
    shared.q_ring.wait_empty(q_turn);
    Barrier& full = shared.q_ring.full[q_turn.stage];
    constexpr int Bytes = S::Rows * int(sizeof(Sm90RowTerms));
    full.expect(Bytes);
    load_bytes(shared.terms[q_turn.stage], p.terms + std::int64_t(work.pair) * p.term_rows + row,
               Bytes, full);
    load_tile<S::Rows, S::D>(shared.q[q_turn.stage], p.q, full, work.q_start + row, work.head,
                             work.q_batch, Keep::long_time);
    q_turn.next();
  };
  const auto copy_keys = [&](const Work& work) {
    shared.k_ring.wait_empty(k_turn);
    load_tile<S::Keys, S::D>(shared.k[k_turn.stage], p.k, shared.k_ring.full[k_turn.stage],
                             work.k_start + work.key0, work.head / p.group, work.k_batch,
                             Keep::briefly);
    k_turn.next();
  };
  const int works = p.pairs * p.key_blocks;
  int ticket = blockIdx.x;
  for (;;) {
    shared.work_ring.wait_empty(work_turn);
    Work& work = shared.work[work_turn.stage];
    const bool none = ticket >= works;
    if (none)
      work.key0 = -1;
    else
      make_work<S>(p, ticket, work);
    shared.work_ring.full[work_turn.stage].arrive();
    if (none) return;
    work_turn.next();
    const KeyRange tiles = work.tiles;
    if (tiles.begin < tiles.end) {
      copy_rows(work, tiles.begin);  // there is room for these before there is for other keys
      copy_keys(work);
      for (int tile = tiles.begin + 1; tile < tiles.end; ++tile) copy_rows(work, tile);
    }
    // Whoever draws the last ticket that anyone will ever draw leaves a zero for the next launch.
    const unsigned drawn = atomicAdd(p.ticket, 1u);
    if (drawn == unsigned(works) - 1) *p.ticket = 0;
    ticket = int(drawn + gridDim.x);
  }
}

// ---- Warpgroups 1 and 2: weights and their sums ------------------------------------------------

// [64 keys, Rows] = keys rows^T.
template <class S>
__device__ void issue_scores(const typename S::T* keys, const typename S::T* rows,
                             float (&to)[S::Rows / 2]) {
  const TileDescriptor a(keys, 0), b(rows, 0);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::D / 16; ++i) {
    const int slab = i / 4, within = i % 4 * 32;
    wgmma<typename S::T, inner, inner>(to, a.at_low(slab * S::Keys * 128 + within),
                                       b.at_low(slab * S::Rows * 128 + within), i > 0);
  }
  wgmma_commit();
}

// Rows that see all of the 16 keys of a warp from `key` on, and so need no mask there.
__device__ inline KeyRange rows_seeing_all(const BandMask& band, int key, int seeing) {
  const KeyRange of_last = band.rows_of(key + 15, seeing);
  return {of_last.begin, of_last.end > 0 ? band.rows_of(key, seeing).end : 0};
}

// Scores to weights, in place. A lane has, of every 8 rows, 2 (lane % 4) and the next. The top is
// subtracted first: of large scores more digits are right so.
template <int Count>
__device__ void exponentiate(float (&s)[Count], const Sm90RowTerms* terms, float scale) {
  const float4* const of_lane = reinterpret_cast<const float4*>(terms) + threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < Count / 4; ++n) {
    const float4 two = of_lane[4 * n];  // {top, share} of each
    s[4 * n + 0] = exp2_fast(fmaf(s[4 * n + 0] - two.x, scale, two.y));
    s[4 * n + 1] = exp2_fast(fmaf(s[4 * n + 1] - two.z, scale, two.w));
    s[4 * n + 2] = exp2_fast(fmaf(s[4 * n + 2] - two.x, scale, two.y));
    s[4 * n + 3] = exp2_fast(fmaf(s[4 * n + 3] - two.z, scale, two.w));
  }
}

// A tile's weights to the sums of the lane's two keys. Summed by tile first: of many rows more
// digits are right so.
template <int Count>
__device__ void add_weights(const float (&weights)[Count], float (&sums)[2]) {
  float here[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < Count; ++i) here[i / 2 % 2] += weights[i];
  sums[0] += here[0];
  sums[1] += here[1];
  touch(sums);
}

// 64 keys of a warpgroup, of which a lane has `key` and `key` + 8.
struct Half {
  int key;
  KeyRange unmasked;  // rows that see all keys of the warp
  float sums[2];

  // Of a tile of rows from `row0` on, whose scores become weights. What is hidden weighs nothing,
  // whatever its score and its row's terms are: that is said last.
  template <int Count>
  __device__ void take(float (&s)[Count], int row0, const Sm90RowTerms* terms, float scale,
                       const BandMask& band, int seeing) {
    if (row0 < unmasked.begin || row0 + 2 * Count > unmasked.end) {
      exponentiate(s, terms, scale);
      hide(s, {band.rows_of(key, seeing), band.rows_of(key + 8, seeing)}, row0, 0.f);
      add_weights(s, sums);
    } else {
      exponentiate(s, terms, scale);
      add_weights(s, sums);
    }
    touch(s);
  }
};

template <class S>
struct WorkReader {
  Shared<S>& shared;
  Turn<2> turn;

  __device__ const Work& take() {
    shared.work_ring.wait_full(turn);
    return shared.work[turn.stage];
  }
  __device__ void release() {
    __syncwarp();
    shared.work_ring.empty[turn.stage].arrive_as_warp();
    turn.next();
  }
};

// What the lane's keys have received; the lanes of a quad share them.
__device__ inline void store(const Params& p, const Work& work, const Half& half) {
  float* const to =
      p.to + (std::int64_t(work.k_batch) * p.heads + work.head) * p.k_rows + work.k_start;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(half.sums[r]);
    const int key = half.key + 8 * r;
    if (threadIdx.x % 4 == 0 && key < work.key0 + work.keys) to[key] = sum;
  }
}

// A warpgroup's way through the tiles of rows.
template <class S>
struct Walk {
  const Params& p;
  Shared<S>& shared;
  Turn<S::QStages> turn{};

  __device__ void release_rows() {
    __syncwarp();  // terms are read
    shared.q_ring.empty[turn.stage].arrive_as_warp();
    turn.next();
  }
  __device__ void pass_over(int begin, int end) {
    for (int tile = begin; tile < end; ++tile) {
      shared.q_ring.wait_full(turn);
      release_rows();
    }
  }
  // The sums of both halves over some tiles, one at least. Tells `keys_read` when the last product
  // is done.
  __device__ void sum(const Work& work, KeyRange tiles, const typename S::T* keys,
                      Barrier& keys_read, Half (&halves)[2]) {
    const BandMask band = work.band;
    const int seeing = work.seeing, last = tiles.end - 1;
    float s0[S::Rows / 2], s1[S::Rows / 2];
    const auto issue = [&](auto& s, int half, int stage) {
      issue_scores<S>(keys + 64 * half * kSlab, shared.q[stage], s);
    };
    const auto take = [&](auto& s, int half, int tile) {
      halves[half].take(s, tile * S::Rows, shared.terms[turn.stage], p.scale, band, seeing);
    };
    shared.q_ring.wait_full(turn);
    issue(s0, 0, turn.stage);
    wgmma_wait<0>(s0);
    for (int tile = tiles.begin; tile < last; ++tile) {
      issue(s1, 1, turn.stage);
      take(s0, 0, tile);
      // Waited for before the next is issued: with both under way, across the end of the loop, the
      // compiler would let no product run beside anything.
      wgmma_wait<0>(s1);
      const Turn<S::QStages> next = turn.following();
      shared.q_ring.wait_full(next);
      issue(s0, 0, next.stage);
      take(s1, 1, tile);
      release_rows();
      wgmma_wait<0>(s0);
    }
    issue(s1, 1, turn.stage);
    take(s0, 0, last);
    wgmma_wait<0>(s1);
    keys_read.arrive_as_warp();
    take(s1, 1, last);
    release_rows();
  }
};

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  // From the first lane, so that the compiler knows it to be one for the warp, and what follows
  // from it.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - 4, consumer = warp / 4;
  const int first_key = S::KeysEach * consumer;
  WorkReader<S> reader{shared};
  Turn<S::KStages> k_turn;
  Walk<S> walk{p, shared};
  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
    const int warp_key = work.key0 + first_key + warp % 4 * 16;
    const auto half_from = [&](int key) {
      return Half{
          key + int(threadIdx.x) % 32 / 4, rows_seeing_all(work.band, key, work.seeing), {0, 0}};
    };
    Half halves[S::Halves] = {half_from(warp_key), half_from(warp_key + 64)};
    const KeyRange tiles = work.tiles, part = work.parts[consumer];
    if (tiles.begin < tiles.end) {
      walk.pass_over(tiles.begin, part.begin);
      shared.k_ring.wait_full(k_turn);
      Barrier& keys_read = shared.k_ring.empty[k_turn.stage];
      if (part.begin < part.end)
        walk.sum(work, part, shared.k[k_turn.stage] + first_key * kSlab, keys_read, halves);
      else
        keys_read.arrive_as_warp();
      k_turn.next();
      walk.pass_over(part.end, tiles.end);
    }
#pragma unroll
    for (const Half& half : halves) store(p, work, half);
    reader.release();
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    attention_received_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  if (threadIdx.x == 0) {
    prefetch_map(p.q);
    prefetch_map(p.k);
    constexpr int Consumers = 4 * kConsumers * kArrivalsOfWarp;  // warps
    shared.k_ring.init(1, Consumers);
    shared.q_ring.init(2, Consumers);  // Q and the rows' terms
    shared.work_ring.init(1, Consumers);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<kServerRegisters>();
    if (threadIdx.x == 0) serve(p, shared);
  } else {
    grow_registers<kConsumerRegisters>();
    compute(p, shared);
  }
}

}  // namespace qkv::cuda::received_sm90
