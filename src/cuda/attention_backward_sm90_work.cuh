// What a block of the backward pass works on, and its first warpgroup, which serves: see
// attention_backward_sm90.cuh.
#pragma once

#include "cuda/attention_backward_sm90.h"
#include "cuda/tile/barrier.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/tma.cuh"

namespace qkv::cuda::backward_sm90 {

inline constexpr int kThreads = 3 * 128;
inline constexpr int kComputingWarps = 8;
inline constexpr int kConsumerRegisters = 240, kServerRegisters = 24;
// Rows of the workspace's tensors are padded to whole steps of any shape.
inline constexpr int kRowPadding = 128;

template <class Element, int HeadSize, int RowsPerStep, int KeysPerBlock, int QStageCount,
          int DoutStageCount, Said OfPairs = Said::nothing, bool Capped = false>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Rows = RowsPerStep;
  static constexpr int Keys = KeysPerBlock;
  static constexpr int QStages = QStageCount, DoutStages = DoutStageCount;
  // A bias or mask comes as tiles, with the rows they belong to; 64 keys of each in a slab.
  static constexpr Said Pairs = OfPairs;
  static constexpr bool Softcap = Capped, Biased = Pairs == Said::bias;
  static constexpr bool Drops = Pairs == Said::dropout;
  static constexpr bool SaidInTiles = Biased || Pairs == Said::mask;
  static constexpr int SaidBytes = SaidInTiles ? (Biased ? 2 : 1) * Rows * Keys : 8;
  static constexpr int BytesOfSaidSlab = SaidBytes / (Keys / kSlab);
  // dK and dV of 64 keys fill both warpgroups' registers: see attention_backward_sm90_wide.cuh.
  static constexpr bool Wide = Keys == 64;
  // dQ [Rows, D] is made by two warpgroups: 64 rows each, or half of the columns each.
  static constexpr bool SplitRows = Rows == 128;
  static constexpr int ColumnsOfDq = SplitRows ? D : D / 2;
  // It goes to memory in one piece, or in slabs of 64 columns where there is no room for it: the
  // first two by one warpgroup, the others by the other.
  static constexpr int DqHalves = Wide ? 2 : 1;
  static constexpr int FloatsOfDqPiece = Rows * (Wide ? kSlab : D);
  static constexpr int PiecesOfDq = Rows * D / FloatsOfDqPiece;
  static constexpr int pieces_of(int half) { return half == 0 ? 2 : PiecesOfDq - 2; }
  // dS^T is made from P^T as rounded for dV, where registers are too few to keep both; then they
  // allow dK to be under way while the next step begins.
  static constexpr bool RoundsWeights = Rows == 128;
};

// Of a query row: its log-sum-exp times log2(e), and r = dout . out - dlse. Under a bias the former
// is that of scores less their row's top, which is told besides: a bias far from 0 costs no digits.
struct RowTerms {
  float lse, r;
};

struct Params {
  CUtensorMap q, dout, k, v;
  CUtensorMap said;  // bias or mask
  void *dk, *dv;
  Sm90Strides dk_strides, dv_strides;
  const RowTerms* terms;  // [sequence][head][rows, padded]
  const float* tops;      // the same, under a bias
  float* dq;              // the same rows, [D] each, a step's rows in the order of `dq_index`
  std::uint32_t* turns;   // [sequence][head][steps]: shares of dQ that have been added
  std::uint32_t* ticket;
  std::uint32_t* tainted;  // where to say that keys or values are not finite, or null: no matter
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  int heads, key_heads, group, head_size, padded_rows;
  int left, right;
  int key_blocks, works;
  int in_turns;                          // heads whose Works are drawn in turns
  bool deterministic, backward_in_keys;  // the order of Works of a head, and of shares of dQ
  float scale;                           // of scores
  float softcap;
  float kept;  // what dropout multiplies weights by that it keeps
  Sm90Pairs of_pairs;
  float* far_sums;  // [sequence][head][key block][warp][2], or null: see sum_by_distance
};

struct Work {
  int key0;  // within the sequence; -1: no more work
  int index, key_head;
  int q_batch, k_batch, q_start, k_start;
  int keys;  // that exist, from key0 on
  int seeing;
  BandMask band;
  KeyRange steps;
};

template <class S>
struct alignas(1024) Shared {
  typename S::T k[S::Keys * S::D], v[S::Keys * S::D];
  typename S::T q[S::QStages][S::Rows * S::D], dout[S::DoutStages][S::Rows * S::D];
  typename S::T ds[2][S::Keys * S::Rows];  // dS^T: [keys][64 rows] slabs
  float dq[2][S::FloatsOfDqPiece];
  RowTerms terms[S::QStages][S::Rows];
  unsigned char said[S::SaidBytes];
  float tops[S::QStages][S::Biased ? S::Rows : 2];
  Ring<1> kv_ring;
  Ring<S::QStages> q_ring;
  Ring<S::DoutStages> dout_ring;
  Ring<1> said_ring;
  // Of wide shapes one for each half of the columns, both with one buffer: `full` is for even and
  // for odd steps, `empty` the first.
  Ring<2> dq_ring[S::DqHalves];
  Ring<2> work_ring;
  Work work[2];
};

template <class S>
__device__ Work make_work(const Params& p, int ticket) {
  Work work;
  // The first blocks of `in_turns` heads, then their second blocks, and so on; of fewer at the end.
  const int first = ticket / (p.in_turns * p.key_blocks) * p.in_turns;
  const int count = min(p.in_turns, p.works / p.key_blocks - first);
  const int within = ticket - first * p.key_blocks;
  const int pair = first + within % count, at = within / count;
  const int block = p.backward_in_keys ? p.key_blocks - 1 - at : at;
  work.index = pair / p.key_heads;
  work.key_head = pair % p.key_heads;
  Sm90Sequence sequence = p.all_alike;
  if (p.sequences)
    sequence = p.sequences[work.index];
  else
    sequence.q_batch = sequence.k_batch = work.index;
  work.key0 = block * S::Keys;
  work.q_batch = sequence.q_batch;
  work.k_batch = sequence.k_batch;
  work.q_start = sequence.q_start;
  work.k_start = sequence.k_start;
  work.keys = min(max(sequence.k_rows - work.key0, 0), S::Keys);
  work.seeing = min(sequence.q_seeing, sequence.q_rows);
  work.band = {p.left, p.right, sequence.offset, sequence.k_visible};
  work.steps = {0, 0};
  const int last = min(work.key0 + S::Keys, min(sequence.k_rows, sequence.k_visible)) - 1;
  if (last >= work.key0) {
    const int begin = work.band.rows_of(work.key0, work.seeing).begin;
    const int end = work.band.rows_of(last, work.seeing).end;
    if (begin < end) work.steps = {begin / S::Rows, (end + S::Rows - 1) / S::Rows};
  }
  return work;
}

template <class S>
struct WorkReader {
  Shared<S>& shared;
  Turn<2> turn;

  __device__ const Work& take() {
    shared.work_ring.wait_full(turn);
    return shared.work[turn.stage];
  }
  // By one lane of each party that took the Work, or by a warp that did.
  __device__ void release() {
    shared.work_ring.empty[turn.stage].arrive();
    turn.next();
  }
  __device__ void release_as_warp() {
    shared.work_ring.empty[turn.stage].arrive_as_warp();
    turn.next();
  }
};

// ---- Warp 0: copies --------------------------------------------------------------------------

template <class S>
__device__ void serve(const Params& p, Shared<S>& shared) {
  Turn<2> work_turn;
  Turn<1> kv_turn;
  Turn<S::QStages> q_turn;
  Turn<S::DoutStages> dout_turn;
  Turn<1> said_turn;
  const auto copy_said = [&](const Work& work, int head, int row) {
    const auto index = [](std::int64_t count, int of) { return count == 1 ? 0 : of; };
    Barrier& full = shared.said_ring.full[0];
    shared.said_ring.wait_empty(said_turn);
    full.expect(S::SaidBytes);
#pragma unroll
    for (int slab = 0; slab < S::Keys / kSlab; ++slab)
      load_slab(shared.said + slab * S::BytesOfSaidSlab, p.said, full, work.key0 + slab * kSlab,
                row, index(p.of_pairs.heads, head), index(p.of_pairs.batches, work.q_batch),
                Keep::long_time);
    said_turn.next();
  };
  const auto copy_work = [&](const Work& work, KeyRange steps) {
    shared.kv_ring.wait_empty(kv_turn);
    Barrier& kv_full = shared.kv_ring.full[0];
    load_tile<S::Keys, S::D>(shared.k, p.k, kv_full, work.k_start + work.key0, work.key_head,
                             work.k_batch, Keep::briefly);
    load_tile<S::Keys, S::D>(shared.v, p.v, kv_full, work.k_start + work.key0, work.key_head,
                             work.k_batch, Keep::briefly);
    kv_turn.next();
    const int q_batch = work.q_batch, q_start = work.q_start;
    const int head_end = (work.key_head + 1) * p.group;
    for (int head = head_end - p.group; head < head_end; ++head) {
      const std::int64_t first_row = (std::int64_t(work.index) * p.heads + head) * p.padded_rows;
      const RowTerms* const terms = p.terms + first_row;
      for (int step = steps.begin; step < steps.end; ++step) {
        const int row = step * S::Rows;
        shared.q_ring.wait_empty(q_turn);
        Barrier& q_full = shared.q_ring.full[q_turn.stage];
        q_full.expect(S::Rows * int(sizeof(RowTerms)));
        load_bytes(shared.terms[q_turn.stage], terms + row, S::Rows * int(sizeof(RowTerms)),
                   q_full);
        if constexpr (S::Biased) {
          q_full.expect(S::Rows * 4);
          load_bytes(shared.tops[q_turn.stage], p.tops + first_row + row, S::Rows * 4, q_full);
        }
        load_tile<S::Rows, S::D>(shared.q[q_turn.stage], p.q, q_full, q_start + row, head, q_batch,
                                 Keep::long_time);
        q_turn.next();
        if constexpr (S::SaidInTiles) copy_said(work, head, row);
        shared.dout_ring.wait_empty(dout_turn);
        load_tile<S::Rows, S::D>(shared.dout[dout_turn.stage], p.dout,
                                 shared.dout_ring.full[dout_turn.stage], q_start + row, head,
                                 q_batch, Keep::long_time);
        dout_turn.next();
      }
    }
  };
  int ticket = blockIdx.x;
  for (;;) {
    shared.work_ring.wait_empty(work_turn);
    Work& work = shared.work[work_turn.stage];
    if (ticket >= p.works) {
      work.key0 = -1;
      shared.work_ring.full[work_turn.stage].arrive();
      return;
    }
    work = make_work<S>(p, ticket);
    shared.work_ring.full[work_turn.stage].arrive();
    work_turn.next();
    const KeyRange steps = work.steps;
    if (steps.begin < steps.end) copy_work(work, steps);
    // Drawn no sooner than it can be begun: others may wait for its shares of dQ.
    const unsigned drawn = atomicAdd(p.ticket, 1u);
    if (drawn == unsigned(p.works) - 1) *p.ticket = 0;
    ticket = int(drawn + gridDim.x);
  }
}

// ---- Warps 1 and 2: dQ to memory ---------------------------------------------------------------

// Which share of a step's dQ a block of keys brings: shares are added in this order, and it is the
// order in which Works are drawn, so that nobody waits for a Work that has not begun.
template <class S>
__device__ unsigned share_of(const Params& p, const Work& work, int step) {
  const int first = step * S::Rows, last = min(first + S::Rows, work.seeing) - 1;
  const KeyRange some = work.band.of_some(first, last);
  const int block = work.key0 / S::Keys;
  return p.backward_in_keys ? (some.end - 1) / S::Keys - block : block - some.begin / S::Keys;
}

__device__ inline void await_turn(const std::uint32_t* done, unsigned share) {
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(done) : "memory");
  } while (seen != share);
}
// What has landed before is seen by who sees this. (A fence of its own before the release, which
// is one, made backward of heads of 64 take 15 % longer.)
__device__ inline void end_turn(std::uint32_t* done, unsigned share) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(done), "r"(share + 1) : "memory");
}

// Two lanes take steps turn about: the next share need not wait until the last has landed. Each
// has a buffer of its own. Of wide shapes it is each half of the columns that has one, which is
// filled for every piece, and the second half is there first.
template <class S>
__device__ void add_dq(const Params& p, Shared<S>& shared, int lane) {
  constexpr int Floats = S::FloatsOfDqPiece, Pieces = S::PiecesOfDq;
  WorkReader<S> reader{shared};
  std::uint32_t phase = 0;  // of this lane's steps
  bool is_mine = lane == 0;
  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) break;
    for (int g = 0; g < p.group; ++g) {
      const std::int64_t pair = std::int64_t(work.index) * p.heads + work.key_head * p.group + g;
      for (int step = work.steps.begin; step < work.steps.end; ++step, is_mine = !is_mine) {
        if (!is_mine) continue;
        const std::int64_t index = pair * (p.padded_rows / S::Rows) + step;
        const unsigned share = p.deterministic ? share_of<S>(p, work, step) : 0;
#pragma unroll
        for (int i = 0; i < Pieces; ++i) {
          // By turns while both have some.
          const int piece = i / 2, half = S::Wide && i % 2 == 0 && piece < S::pieces_of(1);
          Ring<2>& ring = shared.dq_ring[half];
          const float* const from = shared.dq[S::Wide ? half : lane];
          float* const to = p.dq + (index * Pieces + half * 2 + piece) * Floats;
          // Two pieces of a step leave a barrier in the phase in which they found it.
          ring.full[lane].wait(S::Wide && S::pieces_of(half) == 2 ? piece : phase);
          if (p.deterministic && i == 0) await_turn(p.turns + index, share);
          // In a fixed order the first share finds nothing that it should be added to.
          if (p.deterministic && share == 0)
            store_floats(to, from, Floats * 4);
          else
            add_floats(to, from, Floats * 4);
          wait_sent<false>();
          ring.empty[S::Wide ? 0 : lane].arrive();
        }
        phase ^= 1;
        if (p.deterministic) {
          wait_sent<true>();
          end_turn(p.turns + index, share);
        }
      }
    }
    reader.release();
  }
  wait_sent<true>();
}

// ---- Warp 3: keys and values that must not be felt ---------------------------------------------

// Looks for those that are not finite, where some row does not see all of them.
template <class S>
__device__ void inspect(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32;
  WorkReader<S> reader{shared};
  Turn<1> kv_turn;
  const auto all_are_finite = [&](const T* tile) {
    const uint4* const words = reinterpret_cast<const uint4*>(tile);
    bool finite = true;
#pragma unroll 4
    for (int i = lane; i < S::Keys * S::D / 8; i += 32) finite &= all_finite<T>(words[i]);
    return finite;
  };
  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
    if (work.steps.begin < work.steps.end) {
      shared.kv_ring.wait_full(kv_turn);
      kv_turn.next();
      if (!all_are_finite(shared.k) || !all_are_finite(shared.v)) *p.tainted = 1;
      __syncwarp();
      shared.kv_ring.empty[0].arrive_as_warp();
    }
    __syncwarp();
    reader.release_as_warp();
  }
}

// Where registers 4 i .. 4 i + 3 of a thread lie within a step's dQ: each warpgroup's share is
// contiguous, and so is what its threads write at a time.
template <class S>
__device__ int dq_index(int consumer, int i, int thread) {
  return ((consumer * (S::Rows * S::D / 1024) + i) * 128 + thread) * 4;
}

}  // namespace qkv::cuda::backward_sm90
