// A persistent, warp-specialised forward pass. One block per multiprocessor takes blocks of query
// rows (a Work) until none is left. Its first warpgroup serves, the others compute:
//
//   warp 0, one lane   draws Works, and copies Q, K tiles and V tiles into rings of stages
//   warps 1 .. 3       look through V tiles that some row may not see in full (see `inspect`)
//   warpgroups 1 ..    own 64 query rows each:
//
//     S_n = Q K_n^T                      under way while the weights of tile n+1 are made into out:
//     O  += P_{n+1} V_{n+1}              both products are issued together,
//     P_n = softmax step of S_n          and this runs beside the second one
//
// Tiles are taken from the last to the first, so the tiles cut by a diagonal come first. The
// warpgroups pass a token round (`Turnstile`): while one computes a softmax, another's products
// fill the tensor cores.
#include "cuda/attention_forward_sm90.h"

#include <algorithm>

#include "cuda/tile/barrier.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/launch.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/statistics.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda {
namespace {

constexpr char kName[] = "attention_forward";

// What is looked at while scores pass.
enum class Watched { no, scores, scores_and_keys };

// Tile sizes. Registers of a computing thread: D/2 for O, Keys/2 for S and Keys/4 for P.
template <class Element, int HeadSize, int KeysPerTile, int Warpgroups, int StageCount,
          bool Capped = false, Watched What = Watched::no>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Keys = KeysPerTile;
  static constexpr int Consumers = Warpgroups;
  static constexpr int Stages = StageCount;
  static constexpr bool Softcap = Capped;
  static constexpr bool Statistics = What != Watched::no;
  using Watch =
      std::conditional_t<Statistics, ScoreWatch<What == Watched::scores_and_keys>, NoWatch>;
  static constexpr int Rows = 64 * Consumers;
  static constexpr int Threads = 128 * (1 + Consumers);
  // 65536 registers, in steps of 8 per thread; the kernel starts with an even share.
  static constexpr int ConsumerRegisters = Consumers == 2 ? 240 : 160;
  static constexpr int ServerRegisters = Consumers == 2 ? 24 : 32;
  // Ping-pong pays while a softmax is long beside its products.
  static constexpr bool PingPong = D <= 128;
};

struct Params {
  CUtensorMap q, k, v;
  void* out;
  const void* values;  // V again, for the rare path that reads it by hand
  float* lse;
  Sm90Strides out_strides, v_strides;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  std::uint32_t* ticket;
  int heads, group, head_size, q_rows, k_rows;
  int left, right;
  int row_blocks;     // per sequence and head
  int pairs;          // of sequence and head
  int pairs_at_once;  // whose keys and values share L2
  float scale;        // of scores, times log2(e)
  float inner_scale;  // with softcap: score / softcap before tanh
  Sm90Statistics statistics;
  WarpSums* sums;  // [pairs][row_blocks][warps], or null: no statistics
};

// A block of query rows and the tiles of keys it visits.
struct Work {
  int index, head, row0;  // of the sequence; row0 within it, -1: no more work
  int q_batch, k_batch, q_start, k_start;
  int rows;    // that exist, from row0 on
  int seeing;  // of which see anything
  Sight sight;
  KeyRange tiles;   // visited, from the last to the first
  KeyRange plain;   // of which these have no hidden pair over values that could be anything
  bool tainted[3];  // by inspecting warp: values that are not finite were taken out

  __device__ bool must_inspect(int tile) const { return tile < plain.begin || tile >= plain.end; }
};

// The tiles that lie within the keys `seen`. The last may reach beyond key `zeros`: what follows
// there is known to be harmless.
template <class S>
__device__ KeyRange tiles_within(KeyRange seen, int zeros) {
  return {(seen.begin + S::Keys - 1) / S::Keys,
          seen.end >= zeros ? (zeros + S::Keys - 1) / S::Keys : max(seen.end, 0) / S::Keys};
}

template <class S>
struct alignas(1024) Shared {
  typename S::T q[S::Rows * S::D];
  typename S::T k[S::Stages][S::Keys * S::D];
  typename S::T v[S::Stages][S::Keys * S::D];
  Ring<1> q_ring;
  Ring<S::Stages> k_ring, v_ring;
  Barrier requested[S::Stages], inspected[S::Stages];  // of values, where a look is needed
  Ring<2> work_ring;
  Work work[2];
};

// ---- Work ------------------------------------------------------------------------------------

// Long rows first (the last rows of a causal mask see most), and few heads at a time, so that
// their keys and values stay in L2.
template <class S>
__device__ Work make_work(const Params& p, int ticket) {
  const int section = ticket / (p.pairs_at_once * p.row_blocks);
  const int in_section = ticket - section * p.pairs_at_once * p.row_blocks;
  const int pairs = min(p.pairs_at_once, p.pairs - section * p.pairs_at_once);
  const int block = p.row_blocks - 1 - in_section / pairs;
  const int pair = section * p.pairs_at_once + in_section % pairs;
  const int index = pair / p.heads;

  Sm90Sequence sequence = p.all_alike;
  if (p.sequences)
    sequence = p.sequences[index];
  else
    sequence.q_batch = sequence.k_batch = index;

  Work work;
  work.index = index;
  work.head = pair % p.heads;
  work.row0 = block * S::Rows;
  work.q_batch = sequence.q_batch;
  work.k_batch = sequence.k_batch;
  work.q_start = sequence.q_start;
  work.k_start = sequence.k_start;
  work.rows = min(max(sequence.q_rows - work.row0, 0), S::Rows);
  work.seeing = min(max(sequence.q_seeing - work.row0, 0), work.rows);
  work.sight = {p.left, p.right, sequence.offset, sequence.k_visible};
  work.tiles = work.plain = {0, 0};
  for (bool& flag : work.tainted) flag = false;
  if (work.seeing > 0) {
    const int last = work.row0 + work.seeing - 1;
    const KeyRange some = work.sight.of_some(work.row0, last);
    if (some.begin < some.end)
      work.tiles = {some.begin / S::Keys, (some.end + S::Keys - 1) / S::Keys};
    // Beyond the tensor's last row the copy gives zeros.
    work.plain = tiles_within<S>(work.sight.of_all(work.row0, last), p.k_rows - sequence.k_start);
  }
  return work;
}

// The serving lane hands Works out; everyone else takes them in the same order.
template <class S>
struct WorkReader {
  Shared<S>& shared;
  Turn<2> turn;

  __device__ Work& take() {
    shared.work_ring.wait_full(turn);
    return shared.work[turn.stage];
  }
  // The Work taken last is no longer read.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.work_ring.empty[turn.stage].arrive();
    turn.next();
  }
};

// ---- Warp 0: copies --------------------------------------------------------------------------

template <class S>
__device__ void serve(const Params& p, Shared<S>& shared) {
  Turn<2> work_turn;
  Turn<1> q_turn;
  Turn<S::Stages> k_turn, v_turn;
  const int total = p.pairs * p.row_blocks;
  int ticket = blockIdx.x;
  for (;;) {
    shared.work_ring.wait_empty(work_turn);
    Work& work = shared.work[work_turn.stage];
    if (ticket >= total) {
      work.row0 = -1;
      shared.work_ring.full[work_turn.stage].arrive();
      return;
    }
    work = make_work<S>(p, ticket);
    shared.work_ring.full[work_turn.stage].arrive();
    work_turn.next();
    // Drawn before the copies, needed after them. Whoever draws the last ticket that anyone will
    // ever draw leaves a zero for the next launch.
    const unsigned drawn = atomicAdd(p.ticket, 1u);
    if (drawn == unsigned(total) - 1) *p.ticket = 0;
    ticket = int(drawn + gridDim.x);

    const KeyRange tiles = work.tiles, plain = work.plain;
    if (tiles.begin == tiles.end) continue;
    const int key_head = work.head / p.group, k_batch = work.k_batch, k_start = work.k_start;
    shared.q_ring.wait_empty(q_turn);
    load_tile<S::Rows, S::D>(shared.q, p.q, shared.q_ring.full[0], work.q_start + work.row0,
                             work.head, work.q_batch, Keep::briefly);
    q_turn.next();
    const auto load_keys = [&](int tile) {
      shared.k_ring.wait_empty(k_turn);
      load_tile<S::Keys, S::D>(shared.k[k_turn.stage], p.k, shared.k_ring.full[k_turn.stage],
                               k_start + tile * S::Keys, key_head, k_batch, Keep::long_time);
      k_turn.next();
    };
    const auto load_values = [&](int tile) {
      shared.v_ring.wait_empty(v_turn);
      load_tile<S::Keys, S::D>(shared.v[v_turn.stage], p.v, shared.v_ring.full[v_turn.stage],
                               k_start + tile * S::Keys, key_head, k_batch, Keep::long_time);
      if (tile < plain.begin || tile >= plain.end) shared.requested[v_turn.stage].arrive();
      v_turn.next();
    };
    // In the order of use: the keys of a tile are needed one step before its values.
    load_keys(tiles.end - 1);
    for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
      load_keys(tile - 1);
      load_values(tile);
    }
    load_values(tiles.begin);
  }
}

// ---- Warps 1 to 3: values that must not be felt ------------------------------------------------

// Takes values that are not finite out of tiles with hidden pairs, before the product (finite.cuh
// says why). A tile that had some which a row may see is marked, for `restore_tainted`.
template <class S>
__device__ void inspect(Shared<S>& shared) {
  using T = typename S::T;
  const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
  WorkReader<S> reader{shared};
  unsigned copied = 0;       // tiles of all Works before this one
  std::uint32_t phases = 0;  // of `requested`, a bit per stage
  for (;;) {
    Work& work = reader.take();
    if (work.row0 < 0) return;
    const KeyRange tiles = work.tiles;
    for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
      if (!work.must_inspect(tile)) continue;
      const unsigned count = copied + tiles.end - 1 - tile, stage = count % S::Stages;
      // The copy has begun, so `full` cannot be taken for an earlier phase's; and the consumers
      // wait for this look, so it cannot be a later one's.
      shared.requested[stage].wait(phases >> stage & 1);
      phases ^= 1 << stage;
      shared.v_ring.full[stage].wait(count / S::Stages & 1);
      // Keys that somebody sees end here.
      const int seen = work.sight.of(work.row0 + work.seeing - 1).end - tile * S::Keys;
      uint4* const values = reinterpret_cast<uint4*>(shared.v[stage]);
      constexpr int Vectors = S::Keys * S::D / 8;
      bool taint = false;
      for (int i = 32 * warp + lane; i < Vectors; i += 96) {
        const uint4 found = values[i];
        if (all_finite<T>(found)) continue;
        values[i] = only_finite<T>(found);
        taint |= i / 8 % S::Keys < seen;
      }
      fence_async_proxy();
      if (__any_sync(0xffffffff, taint) && lane == 0) work.tainted[warp] = true;
      if (lane == 0) shared.inspected[stage].arrive();
    }
    copied += tiles.end - tiles.begin;
    reader.release();
  }
}

// Adds what was taken out of V to the rows that see it. Slow, and never on the path of ordinary
// values.
template <class S, int Count>
__device__ void restore_tainted(const Params& p, const Work& work, int row, float (&o)[Count]) {
  using T = typename S::T;
  const T* const values = static_cast<const T*>(p.values) + work.k_batch * p.v_strides.batch +
                          work.head / p.group * p.v_strides.head;
  const KeyRange seen[2] = {work.sight.of(row), work.sight.of(row + 8)};
  const int end = max(seen[0].end, seen[1].end);
  for (int key = min(seen[0].begin, seen[1].begin); key < end; ++key) {
    if (!work.must_inspect(key / S::Keys)) continue;
    const T* const at = values + (work.k_start + key) * p.v_strides.row;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const KeyRange range = seen[i / 2 % 2];
      if (column >= p.head_size || key < range.begin || key >= range.end) continue;
      const float value = float(at[column]);
      if (!isfinite(value)) o[i] += value;
    }
  }
}

// ---- Warpgroups 1 and on: products and softmax -------------------------------------------------

// Lets the computing warpgroups issue their products one after the other, round and round.
template <class S>
struct Turnstile {
  int id;  // of this warpgroup

  __device__ explicit Turnstile(int consumer) : id(1 + consumer) {
    if (S::PingPong && consumer == S::Consumers - 1) pass();  // the first may go
  }
  __device__ void enter() const {
    if (S::PingPong) named_wait(id, 256);
  }
  __device__ void pass() const {
    if (S::PingPong) named_arrive(id == S::Consumers ? 1 : id + 1, 256);
  }
};

// Rows `row` and `row + 8` of the block, `o` times `factor`.
template <class S, int Count>
__device__ void store_rows(const Params& p, const Work& work, int row, const float (&o)[Count],
                           const float (&factor)[2], const float (&lse)[2]) {
  using T = typename S::T;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    const bool sees = at < work.seeing && factor[r] != 0;
    T* const out = static_cast<T*>(p.out) + work.q_batch * p.out_strides.batch +
                   work.head * p.out_strides.head +
                   std::int64_t(work.q_start + work.row0 + at) * p.out_strides.row;
    store_row(out, at < work.rows, p.head_size, o, r, factor[r], !sees);
    if (p.lse && at < work.rows && threadIdx.x % 4 == 0)
      p.lse[(std::int64_t(work.q_batch) * p.heads + work.head) * p.q_rows + work.q_start +
            work.row0 + at] = sees ? lse[r] : -kInfinity;
  }
}

template <class S>
__device__ WarpSums& sums_of_warp(const Params& p, const Work& work, int row) {
  const std::int64_t pair = std::int64_t(work.index) * p.heads + work.head;
  return p.sums[pair * (p.row_blocks * S::Rows / 16) + (work.row0 + row) / 16];
}

// The largest score of rows `row` and `row + 8` of the block. The sum knows of NaN, which a maximum
// does not.
__device__ inline float largest_score(const OnlineSoftmax& softmax, int r) {
  const float sum = softmax.sum[r];
  return sum != sum && softmax.top[r] != kInfinity ? sum : softmax.top[r];
}

// All that a pass without a watch can tell: the largest logit.
template <class S>
__device__ void store_largest(const Params& p, const Work& work, int row,
                              const OnlineSoftmax& softmax) {
  float top = -kInfinity;
  bool unknown = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= work.seeing || softmax.sum[r] == 0) continue;
    top = fmaxf(top, largest_score(softmax, r));
    unknown |= isnan(largest_score(softmax, r));
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
  unknown = __any_sync(0xffffffff, unknown);
  if (threadIdx.x % 32 == 0)
    sums_of_warp<S>(p, work, row).max_logit = unknown ? NAN : top * (p.scale / kLog2e);
}

// What rows `row` and `row + 8` of the block have told, and the warp's sums.
template <class S>
__device__ void store_statistics(const Params& p, const Work& work, int row,
                                 const typename S::Watch& watch, const OnlineSoftmax& softmax) {
  RowTold told[2];
  int visible[2];
  float top[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    const KeyRange seen = work.sight.of(work.row0 + at);
    const float sum = softmax.sum[r];
    const bool sees = at < work.seeing && seen.begin < seen.end && sum != 0;
    visible[r] = sees ? seen.end - seen.begin : 0;
    top[r] = largest_score(softmax, r);
    watch.finish(r, sum, told[r]);
    told[r].top_weight = exp2_fast((top[r] - softmax.maximum[r]) * p.scale) / sum;
    if (at < work.rows && threadIdx.x % 4 == 0) {
      const std::int64_t i = (std::int64_t(work.q_batch) * p.heads + work.head) * p.q_rows +
                             work.q_start + work.row0 + at;
      const Sm90Statistics& to = p.statistics;
      if (to.entropy) to.entropy[i] = sees ? told[r].entropy : 0.f;
      if (to.top_weight) to.top_weight[i] = sees ? told[r].top_weight : 0.f;
      if (to.top_index) to.top_index[i] = sees ? told[r].top_key : -1;
    }
  }
  const WarpSums sums = sum_rows(told, top, visible, p.scale / kLog2e);
  if (threadIdx.x % 32 == 0) sums_of_warp<S>(p, work, row) = sums;
}

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  const int consumer = threadIdx.x / 128 - 1;
  const bool leads_warp = threadIdx.x % 32 == 0;
  // This thread's first row, and its warp's, within the block.
  const int warp_row = 64 * consumer + threadIdx.x % 128 / 32 * 16;
  const int row = warp_row + threadIdx.x % 32 / 4;
  WorkReader<S> reader{shared};
  Turn<1> q_turn;
  Turn<S::Stages> turn;                // of keys and values: they come in pairs
  std::uint32_t inspected_phases = 0;  // a bit per stage
  const Turnstile<S> turnstile(consumer);

  float o[S::D / 2], s[S::Keys / 2];
  std::uint32_t weights[S::Keys / 16][4];

  const auto issue_scores = [&](int stage) {
    const TileDescriptor q(shared.q + 64 * consumer * kSlab, 0), k(shared.k[stage], 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      const int slab = i / 4, within = i % 4 * 32;
      wgmma<T, inner, inner>(s, q.at(slab * S::Rows * 128 + within),
                             k.at(slab * S::Keys * 128 + within), i > 0);
    }
    wgmma_commit();
  };
  const auto issue_output = [&](int stage) {
    const TileDescriptor v(shared.v[stage], S::Keys * 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::Keys / 16; ++i) wgmma<T, outer>(o, weights[i], v.at(i * 16 * 128), 1);
    wgmma_commit();
  };
  const auto release = [&](Barrier& barrier) {
    if (leads_warp) barrier.arrive();
  };

  for (;;) {
    const Work& work = reader.take();
    if (work.row0 < 0) return;
    OnlineSoftmax softmax;
    typename S::Watch watch;
    float factor[2], lse[2];
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) o[i] = 0;

    const KeyRange tiles = work.tiles, plain = work.plain;
    if (tiles.begin < tiles.end) {
      // What all rows of this warp see needs no mask.
      const KeyRange unmasked = tiles_within<S>(
          work.sight.of_all(work.row0 + warp_row, work.row0 + warp_row + 15), kUnbounded);
      // Scores of a tile to weights, in place; false if `o` keeps its scale.
      const auto weigh = [&](int tile) {
        if constexpr (S::Softcap) {
#pragma unroll
          for (float& x : s) x = tanh_fast(x * p.inner_scale);
        }
        const bool masked = tile < unmasked.begin || tile >= unmasked.end;
        if (masked)
          hide(s, {work.sight.of(work.row0 + row), work.sight.of(work.row0 + row + 8)},
               tile * S::Keys, S::Statistics ? kHiddenScore : -kInfinity);
        if constexpr (S::Statistics) {
          watch.masked = masked;
          watch.key0 = tile * S::Keys;
        }
        return softmax.step(s, p.scale, factor, watch);
      };
      // Values of a tile have come, and are fit for the product.
      const auto wait_values = [&](int tile) {
        shared.v_ring.wait_full(turn);
        if (tile >= plain.begin && tile < plain.end) return;
        shared.inspected[turn.stage].wait(inspected_phases >> turn.stage & 1);
        inspected_phases ^= 1 << turn.stage;
      };

      int tile = tiles.end - 1;
      shared.q_ring.wait_full(q_turn);
      shared.k_ring.wait_full(turn);
      issue_scores(turn.stage);
      wgmma_wait<0>(s);
      release(shared.k_ring.empty[turn.stage]);
      weigh(tile);
      pack_operands<T>(weights, s);

      for (; tile > tiles.begin; --tile) {
        Turn<S::Stages> next = turn;
        next.next();
        shared.k_ring.wait_full(next);
        turnstile.enter();
        issue_scores(next.stage);
        wait_values(tile);
        issue_output(turn.stage);
        turnstile.pass();
        wgmma_wait<1>(s);
        release(shared.k_ring.empty[next.stage]);
        const bool rescale = weigh(tile - 1);
        wgmma_wait<0>(o);
        touch(s);  // the weights under way are not overwritten before this point
        release(shared.v_ring.empty[turn.stage]);
        turn = next;
        if (rescale) {
#pragma unroll
          for (int i = 0; i < S::D / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
        pack_operands<T>(weights, s);
      }
      release(shared.q_ring.empty[0]);
      q_turn.next();

      wait_values(tile);
      issue_output(turn.stage);
      softmax.finish(p.scale, lse);
      wgmma_wait<0>(o);
      release(shared.v_ring.empty[turn.stage]);
      turn.next();
      if (work.tainted[0] || work.tainted[1] || work.tainted[2])
        restore_tainted<S>(p, work, work.row0 + row, o);
    }
    factor[0] = softmax.sum[0] == 0 ? 0 : 1 / softmax.sum[0];
    factor[1] = softmax.sum[1] == 0 ? 0 : 1 / softmax.sum[1];
    store_rows<S>(p, work, row, o, factor, lse);
    if constexpr (S::Statistics)
      store_statistics<S>(p, work, row, watch, softmax);
    else if (p.sums)
      store_largest<S>(p, work, row, softmax);
    reader.release();
  }
}

template <class S>
__global__ void __launch_bounds__(S::Threads, 1)
    attention_forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  if (threadIdx.x == 0) {
    prefetch_map(p.q);
    prefetch_map(p.k);
    prefetch_map(p.v);
    constexpr int ConsumerWarps = 4 * S::Consumers;
    shared.q_ring.init(1, ConsumerWarps);
    shared.k_ring.init(1, ConsumerWarps);
    shared.v_ring.init(1, ConsumerWarps);
    for (Barrier& barrier : shared.requested) barrier.init(1);
    for (Barrier& barrier : shared.inspected) barrier.init(3);
    shared.work_ring.init(1, 3 + ConsumerWarps);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<S::ServerRegisters>();
    if (threadIdx.x >= 32)
      inspect(shared);
    else if (threadIdx.x == 0)
      serve(p, shared);
  } else {
    grow_registers<S::ConsumerRegisters>();
    compute(p, shared);
  }
}

// ---- Statistics of a head ----------------------------------------------------------------------

// One warp per sequence and head puts the warps' sums together, always in the same order.
__global__ void finish_statistics_kernel(const WarpSums* sums, int count, Sm90Statistics to) {
  const int pair = blockIdx.x;
  double pairs = 0, mean = 0, deviation = 0, rows = 0, entropy = 0, relative = 0, saturated = 0;
  float top = -kInfinity;
  const auto add = [&](double n, double its_mean, double its_deviation) {
    if (n == 0) return;
    const double gap = its_mean - mean;
    deviation += its_deviation + gap * gap * pairs * n / (pairs + n);
    mean += gap * n / (pairs + n);
    pairs += n;
  };
  for (int i = threadIdx.x; i < count; i += 32) {
    const WarpSums one = sums[std::int64_t(pair) * count + i];
    add(one.pairs, one.mean, one.deviation);
    rows += one.rows;
    entropy += one.entropy;
    relative += one.entropy_relative;
    saturated += one.saturated;
    if (!(one.max_logit <= top) && top == top) top = one.max_logit;
  }
  for (int step = 1; step < 32; step *= 2) {
    const auto other = [&](auto x) { return __shfl_down_sync(0xffffffff, x, step); };
    add(other(pairs), other(mean), other(deviation));
    rows += other(rows);
    entropy += other(entropy);
    relative += other(relative);
    saturated += other(saturated);
    const float its_top = other(top);
    if (!(its_top <= top) && top == top) top = its_top;
  }
  if (threadIdx.x != 0) return;
  const double seeing = fmax(rows, 1.0);
  const auto write = [pair](float* where, double value) {
    if (where) where[pair] = float(value);
  };
  write(to.max_logit, top);
  write(to.score_mean, mean);
  write(to.score_var, deviation / fmax(pairs, 1.0));
  write(to.entropy_mean, entropy / seeing);
  write(to.entropy_relative, relative / seeing);
  write(to.saturation, saturated / seeing);
}

// ---- Host --------------------------------------------------------------------------------------

template <class S>
void launch(const Sm90Forward& call, cudaStream_t stream) {
  Params p{};
  p.q = make_tensor_map({call.q, call.q_batches, call.heads, call.q_rows, call.head_size,
                         call.q_strides.batch, call.q_strides.head, call.q_strides.row},
                        call.dtype, S::Rows);
  const auto keys = [&](const void* data, const Sm90Strides& strides) {
    return make_tensor_map({data, call.k_batches, call.key_heads, call.k_rows, call.head_size,
                            strides.batch, strides.head, strides.row},
                           call.dtype, S::Keys);
  };
  p.k = keys(call.k, call.k_strides);
  p.v = keys(call.v, call.v_strides);
  p.out = call.out;
  p.values = call.v;
  p.lse = call.lse;
  p.out_strides = call.out_strides;
  p.v_strides = call.v_strides;
  p.sequences = call.sequences;
  p.all_alike = call.all_alike;
  p.ticket = call.ticket;
  p.heads = int(call.heads);
  p.group = int(call.heads / call.key_heads);
  p.head_size = int(call.head_size);
  p.q_rows = int(call.q_rows);
  p.k_rows = int(call.k_rows);
  p.left = window_side(call.left);
  p.right = window_side(call.right);
  p.row_blocks = int((call.longest + S::Rows - 1) / S::Rows);
  p.pairs = int(call.sequence_count * call.heads);
  // Keys and values of as many heads as fit half of L2 (which holds 50 MB or more).
  const std::int64_t bytes = 4 * std::max<std::int64_t>(call.k_rows, 1) * call.head_size;
  p.pairs_at_once =
      int(std::clamp<std::int64_t>((std::int64_t(24) << 20) / bytes, 1, call.key_heads * 64)) *
      p.group;
  p.scale = (call.softcap > 0 ? call.softcap : call.scale) * kLog2e;
  p.inner_scale = call.softcap > 0 ? call.scale / call.softcap : 0;
  if (call.statistics) {
    p.statistics = *call.statistics;
    p.sums = static_cast<WarpSums*>(call.statistics->workspace);
  }
  const std::int64_t works = std::int64_t(p.pairs) * p.row_blocks;
  if (works == 0) return;

  constexpr int Bytes = sizeof(Shared<S>);
  static_assert(Bytes <= 227 * 1024);
  const auto kernel = attention_forward_kernel<S>;
  allow_shared_bytes(kernel, Bytes, kName);
  const int blocks = int(std::min<std::int64_t>(works, multiprocessors()));
  kernel<<<blocks, S::Threads, Bytes, stream>>>(p);
  if (call.statistics)
    finish_statistics_kernel<<<p.pairs, 32, 0, stream>>>(p.sums, p.row_blocks * S::Rows / 16,
                                                         p.statistics);
  check_status(cudaGetLastError(), kName);
}

// Wide tiles where nothing is cut; narrower ones where a diagonal would waste them.
template <class T, Watched What>
void launch_watched(const Sm90Forward& call, cudaStream_t stream) {
  const bool cut = call.left >= 0 || call.right >= 0;
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 4, false, What>>(call, stream);
  if (call.head_size > 128) return launch<Shape<T, 256, 80, 2, 2, false, What>>(call, stream);
  if (cut) return launch<Shape<T, 128, 128, 2, 2, false, What>>(call, stream);
  launch<Shape<T, 128, 176, 2, 2, false, What>>(call, stream);
}

template <class T>
void launch_softcap(const Sm90Forward& call, cudaStream_t stream) {
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 2, true>>(call, stream);
  if (call.head_size <= 128) return launch<Shape<T, 128, 128, 2, 2, true>>(call, stream);
  launch<Shape<T, 256, 64, 2, 2, true>>(call, stream);
}

template <class T>
void launch_for(const Sm90Forward& call, cudaStream_t stream) {
  if (call.softcap > 0) return launch_softcap<T>(call, stream);
  if (!call.statistics || !call.statistics->need_a_watch())
    return launch_watched<T, Watched::no>(call, stream);
  if (call.statistics->top_index == nullptr)
    return launch_watched<T, Watched::scores>(call, stream);
  launch_watched<T, Watched::scores_and_keys>(call, stream);
}

}  // namespace

std::int64_t sm90_statistics_workspace(const Sm90Forward& call) {
  // Enough for blocks of rows of any shape.
  return call.sequence_count * call.heads * (call.longest / 16 + 12) *
         std::int64_t(sizeof(WarpSums));
}

const char* why_not_sm90_forward(const Sm90Forward& call) {
  if (call.dtype != DType::bf16 && call.dtype != DType::f16) return "not bf16 or f16";
  if (call.head_size != call.value_size) return "values differ in size from keys";
  if (call.head_size % 8 != 0 || call.head_size < 8 || call.head_size > 256)
    return "head size is not a multiple of 8 up to 256";
  if (!(call.scale > 0)) return "scale is not positive";
  if (call.statistics && call.softcap > 0) return "statistics with softcap";
  if (call.statistics && call.scale > kLargestWatchedScale) return "statistics with a large scale";
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
}

}  // namespace qkv::cuda
