// Gradients by blocks of 128 keys (64 for large heads). A persistent block holds K and V of its
// keys and walks over the query rows that see any of them; dK and dV stay in registers, dQ is added
// up in memory.
//
//   warp 0, one lane   draws Works (a block of keys), copies K, V, and per step Q, dO and the rows'
//                      log-sum-exp and r
//   warps 1 and 2,     add each step's share of dQ to memory, turn about, in a fixed order if
//   one lane each      asked to
//   warpgroups 1, 2    own 64 keys each. Scores stand with keys as rows, so that what is made of
//                      them is at once the left operand of the next product:
//
//     S^T  = K Q^T                dP^T = V dO^T               [64 keys, Rows]
//     P^T  = 2^(S^T - lse)        dS^T = P^T (dP^T - r)
//     dV  += P^T dO               dK  += dS^T Q               [64 keys, D], from registers
//     dQ   = dS K                                             both warpgroups' dS, by shared memory
//
// With D = 256 the sums dK and dV of 64 keys fill two warpgroups' registers: both then work on the
// same 64 keys, make the same S^T and dP^T, and own half of the columns of dK and dV each.
//
// Products run beside arithmetic: dP^T beside the exponentials, dV beside dS^T, dK beside the way
// of dQ to memory.
#include "cuda/attention_backward_sm90.h"

#include <algorithm>

#include "cuda/tile/barrier.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/launch.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda {
namespace {

constexpr char kName[] = "attention_backward";

constexpr int kThreads = 3 * 128;
constexpr int kConsumerRegisters = 240, kServerRegisters = 24;
// Rows of the workspace's tensors are padded to whole steps of any shape.
constexpr int kRowPadding = 128;

template <class Element, int HeadSize, int RowsPerStep, int KeysPerBlock, int QStageCount,
          int DoutStageCount, int DqStageCount>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Rows = RowsPerStep;
  static constexpr int Keys = KeysPerBlock;
  static constexpr int QStages = QStageCount, DoutStages = DoutStageCount, DqStages = DqStageCount;
  // Both warpgroups on the same keys, each with half of the columns of dK and dV.
  static constexpr bool Twins = Keys == 64;
  static constexpr int ColumnsOfDk = Twins ? D / 2 : D;
  // dQ [Rows, D] is made by two warpgroups: 64 rows each, or half of the columns each. It goes to
  // memory in one piece, or in one of each warpgroup where there is no room for both.
  static constexpr bool SplitRows = Rows == 128;
  static constexpr int ColumnsOfDq = SplitRows ? D : D / 2;
  static constexpr int DqPieces = Twins ? 2 : 1;
  // dS^T is made from P^T as rounded for dV, where registers are too few to keep both; then they
  // allow dK to be under way while the next step begins.
  static constexpr bool RoundsWeights = Rows == 128 || Twins;
};

struct RowTerms {  // of a query row: its log-sum-exp times log2(e), and r = dout . out - dlse
  float lse, r;
};

struct Params {
  CUtensorMap q, dout, k, v;
  void *dk, *dv;
  Sm90Strides dk_strides, dv_strides;
  const RowTerms* terms;  // [sequence][head][rows, padded]
  float* dq;              // the same rows, [D] each, a step's rows in the order of `dq_index`
  std::uint32_t* turns;   // [sequence][head][steps]: shares of dQ that have been added
  std::uint32_t* ticket;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  int heads, key_heads, group, head_size, padded_rows;
  int left, right;
  int key_blocks, works;
  bool deterministic, backward_in_keys;  // the order of Works of a head, and of shares of dQ
  float scale;                           // of scores
};

struct Work {
  int key0;  // within the sequence; -1: no more work
  int index, key_head;
  int q_batch, k_batch, q_start, k_start;
  int keys;  // that exist, from key0 on
  int seeing;
  Sight sight;
  KeyRange steps;
};

template <class S>
struct alignas(1024) Shared {
  typename S::T k[S::Keys * S::D], v[S::Keys * S::D];
  typename S::T q[S::QStages][S::Rows * S::D], dout[S::DoutStages][S::Rows * S::D];
  typename S::T ds[2][S::Keys * S::Rows];  // dS^T: [keys][64 rows] slabs
  float dq[S::DqStages][S::Rows * S::D / S::DqPieces];
  RowTerms terms[S::QStages][S::Rows];
  Ring<1> kv_ring;
  Ring<S::QStages> q_ring;
  Ring<S::DoutStages> dout_ring;
  Ring<S::DqStages> dq_ring;
  Ring<2> work_ring;
  Work work[2];
};

template <class S>
__device__ Work make_work(const Params& p, int ticket) {
  Work work;
  const int pair = ticket / p.key_blocks, at = ticket % p.key_blocks;
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
  work.sight = {p.left, p.right, sequence.offset, sequence.k_visible};
  work.steps = {0, 0};
  const int last = min(work.key0 + S::Keys, min(sequence.k_rows, sequence.k_visible)) - 1;
  if (last >= work.key0) {
    const int begin = work.sight.rows_of(work.key0, work.seeing).begin;
    const int end = work.sight.rows_of(last, work.seeing).end;
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
  // By one lane of each party that took the Work.
  __device__ void release() {
    shared.work_ring.empty[turn.stage].arrive();
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
      const RowTerms* const terms =
          p.terms + (std::int64_t(work.index) * p.heads + head) * p.padded_rows;
      for (int step = steps.begin; step < steps.end; ++step) {
        const int row = step * S::Rows;
        shared.q_ring.wait_empty(q_turn);
        Barrier& q_full = shared.q_ring.full[q_turn.stage];
        q_full.expect(S::Rows * int(sizeof(RowTerms)));
        load_bytes(shared.terms[q_turn.stage], terms + row, S::Rows * int(sizeof(RowTerms)),
                   q_full);
        load_tile<S::Rows, S::D>(shared.q[q_turn.stage], p.q, q_full, q_start + row, head, q_batch,
                                 Keep::long_time);
        q_turn.next();
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
  const KeyRange some = work.sight.of_some(first, last);
  const int block = work.key0 / S::Keys;
  return p.backward_in_keys ? (some.end - 1) / S::Keys - block : block - some.begin / S::Keys;
}

// One lane for each stage of the ring: the next piece need not wait until the last has landed.
template <class S>
__device__ void add_dq(const Params& p, Shared<S>& shared, int stage) {
  constexpr int Floats = S::Rows * S::D / S::DqPieces;
  WorkReader<S> reader{shared};
  Turn<S::DqStages> turn;
  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) break;
    for (int g = 0; g < p.group; ++g) {
      const std::int64_t pair = std::int64_t(work.index) * p.heads + work.key_head * p.group + g;
      for (int step = work.steps.begin; step < work.steps.end; ++step) {
        float* const to = p.dq + (pair * p.padded_rows + step * S::Rows) * S::D;
        std::uint32_t* const done = p.turns + pair * (p.padded_rows / S::Rows) + step;
        const unsigned share = p.deterministic ? share_of<S>(p, work, step) : 0;
        for (int piece = 0; piece < S::DqPieces; ++piece, turn.next()) {
          if (turn.stage != stage) continue;
          shared.dq_ring.wait_full(turn);
          if (p.deterministic && piece == 0) {
            unsigned seen;
            do {
              asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(done) : "memory");
            } while (seen != share);
          }
          add_floats(to + piece * Floats, shared.dq[stage], Floats * 4);
          wait_sent<false>();
          shared.dq_ring.empty[stage].arrive();
          if (p.deterministic && piece == S::DqPieces - 1) {
            wait_sent<true>();
            __threadfence();
            asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(done), "r"(share + 1) : "memory");
          }
        }
      }
    }
    reader.release();
  }
  wait_sent<true>();
}

// Where registers 4 i .. 4 i + 3 of a thread lie within a step's dQ: each warpgroup's share is
// contiguous, and so is what its threads write at a time.
template <class S>
__device__ int dq_index(int consumer, int i, int thread) {
  return ((consumer * (S::Rows * S::D / 1024) + i) * 128 + thread) * 4;
}

// ---- Warpgroups 1 and 2 ------------------------------------------------------------------------

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  constexpr int Both = 1;  // the numbered barrier of the two warpgroups
  const int consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int consumer_key = S::Twins ? 0 : 64 * consumer;
  const int warp_key = consumer_key + thread / 32 * 16;
  const int column0 = S::Twins ? consumer * S::ColumnsOfDk : 0;  // of dK and dV
  WorkReader<S> reader{shared};
  Turn<1> kv_turn;
  Turn<S::QStages> q_turn;
  Turn<S::DoutStages> dout_turn;
  Turn<S::DqStages> dq_turn;
  const float scale = p.scale * kLog2e;

  float dk[S::ColumnsOfDk / 2], dv[S::ColumnsOfDk / 2], s[S::Rows / 2];
  const auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  const auto q_before = [](Turn<S::QStages> turn) {
    return (turn.stage + S::QStages - 1) % S::QStages;
  };
  const auto issue_scores = [&](const T* keys, const T* rows, float(&to)[S::Rows / 2]) {
    const TileDescriptor a(keys + consumer_key * kSlab, 0), b(rows, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      const int slab = i / 4, within = i % 4 * 32;
      wgmma<T, inner, inner>(to, a.at(slab * S::Keys * 128 + within),
                             b.at(slab * S::Rows * 128 + within), i > 0);
    }
    wgmma_commit();
  };
  const auto issue_gradient = [&](float(&to)[S::ColumnsOfDk / 2],
                                  const std::uint32_t(&a)[S::Rows / 16][4], const T* rows) {
    const TileDescriptor b(rows + column0 * S::Rows, S::Rows * 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::Rows / 16; ++i) wgmma<T, outer>(to, a[i], b.at(i * 16 * 128), 1);
    wgmma_commit();
  };

  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
#pragma unroll
    for (int i = 0; i < S::ColumnsOfDk / 2; ++i) dk[i] = dv[i] = 0;
    const KeyRange steps = work.steps;
    const int key0 = work.key0, seeing = work.seeing;
    const Sight sight = work.sight;
    if (steps.begin < steps.end) {
      // Rows that see all keys of this warp need no mask.
      const KeyRange unmasked{sight.rows_of(key0 + warp_key + 15, seeing).begin,
                              sight.rows_of(key0 + warp_key + 15, seeing).end > 0
                                  ? sight.rows_of(key0 + warp_key, seeing).end
                                  : 0};
      shared.kv_ring.wait_full(kv_turn);
      kv_turn.next();
      const int count = (steps.end - steps.begin) * p.group;
      int step = steps.begin;
      for (int i = 0; i < count; ++i) {
        float dp[S::Rows / 2];
        const T* const q_rows = shared.q[q_turn.stage];
        const T* const dout_rows = shared.dout[dout_turn.stage];
        shared.q_ring.wait_full(q_turn);
        issue_scores(shared.k, q_rows, s);
        if constexpr (S::RoundsWeights) {  // dK of the step before is done, its rows are free
          wgmma_wait<1>(dk);
          if (i > 0) release(shared.q_ring.empty[q_before(q_turn)]);
        }
        shared.dout_ring.wait_full(dout_turn);
        issue_scores(shared.v, dout_rows, dp);
        wgmma_wait<1>(s);

        const int row0 = step * S::Rows;
        if (row0 < unmasked.begin || row0 + S::Rows > unmasked.end) {
          const int key = key0 + warp_key + lane / 4;
          hide(s, {sight.rows_of(key, seeing), sight.rows_of(key + 8, seeing)}, row0, -kInfinity);
        }
        // {lse, r} of rows 8 n + 2 (lane % 4) and the next.
        const float4* const terms =
            reinterpret_cast<const float4*>(shared.terms[q_turn.stage]) + lane % 4;
#pragma unroll
        for (int n = 0; n < S::Rows / 8; ++n) {
          const float4 two = terms[4 * n];
          s[4 * n + 0] = exp2_fast(fmaf(s[4 * n + 0], scale, -two.x));
          s[4 * n + 1] = exp2_fast(fmaf(s[4 * n + 1], scale, -two.z));
          s[4 * n + 2] = exp2_fast(fmaf(s[4 * n + 2], scale, -two.x));
          s[4 * n + 3] = exp2_fast(fmaf(s[4 * n + 3], scale, -two.z));
        }
        std::uint32_t weights[S::Rows / 16][4];
        pack_operands<T>(weights, s);
        issue_gradient(dv, weights, dout_rows);
        wgmma_wait<1>(dp);
#pragma unroll
        for (int n = 0; n < S::Rows / 8; ++n) {
          const float4 two = terms[4 * n];
          if constexpr (S::RoundsWeights) {
            unpack<T>(weights[n / 2][n % 2 * 2], s[4 * n + 0], s[4 * n + 1]);
            unpack<T>(weights[n / 2][n % 2 * 2 + 1], s[4 * n + 2], s[4 * n + 3]);
          }
          dp[4 * n + 0] = s[4 * n + 0] * (dp[4 * n + 0] - two.y);
          dp[4 * n + 1] = s[4 * n + 1] * (dp[4 * n + 1] - two.w);
          dp[4 * n + 2] = s[4 * n + 2] * (dp[4 * n + 2] - two.y);
          dp[4 * n + 3] = s[4 * n + 3] * (dp[4 * n + 3] - two.w);
        }
        std::uint32_t ds[S::Rows / 16][4];
        pack_operands<T>(ds, dp);
        // Two buffers: the other warpgroup may still read the one of the step before.
        T* const ds_shared = shared.ds[i % 2];
#pragma unroll
        for (int n = 0; n < S::Rows / 16; ++n) {
          if (S::Twins && n / 2 != consumer) continue;  // the twin writes the others
          store_matrices(shared_address(ds_shared) +
                             swizzled(S::Keys, warp_key + lane % 16, 2 * n + lane / 16),
                         ds[n]);
        }
        fence_async_proxy();
        const auto release_dout = [&] {
          release(shared.dout_ring.empty[dout_turn.stage]);
          dout_turn.next();
        };
        if constexpr (S::Twins) {  // the registers of P^T are needed, and so is dO's only stage
          wgmma_wait<0>(dv);
          release_dout();
        }
        named_wait(Both, 256);

        float dq[S::ColumnsOfDq / 2];
        {
          const TileDescriptor a(ds_shared + (S::SplitRows ? consumer * S::Keys * kSlab : 0), 0);
          const TileDescriptor b(
              shared.k + (S::SplitRows ? 0 : consumer * S::ColumnsOfDq * S::Keys), S::Keys * 128);
          wgmma_fence();
#pragma unroll
          for (int n = 0; n < S::Keys / 16; ++n)
            wgmma<T, outer, outer>(dq, a.at(n * 16 * 128), b.at(n * 16 * 128), n > 0);
          wgmma_commit();
        }
        issue_gradient(dk, ds, q_rows);
        wgmma_wait<1>(dq);
        if constexpr (!S::Twins) release_dout();
        // Where each warpgroup has its own piece, it also waits out the other's: a party that
        // skipped phases of a barrier could take the one two before for its own.
        if (S::DqPieces == 2 && consumer == 1) {
          shared.dq_ring.wait_empty(dq_turn);
          dq_turn.next();
        }
        shared.dq_ring.wait_empty(dq_turn);
        float* const to = shared.dq[dq_turn.stage];
#pragma unroll
        for (int n = 0; n < S::ColumnsOfDq / 8; ++n)
          *reinterpret_cast<float4*>(to +
                                     dq_index<S>(S::DqPieces == 2 ? 0 : consumer, n, thread)) = {
              dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]};
        fence_async_proxy();
        __syncwarp();
        release(shared.dq_ring.full[dq_turn.stage]);
        dq_turn.next();
        if (S::DqPieces == 2 && consumer == 0) {
          shared.dq_ring.wait_empty(dq_turn);
          dq_turn.next();
        }
        if constexpr (!S::RoundsWeights) {
          wgmma_wait<0>(dk);
          release(shared.q_ring.empty[q_turn.stage]);
        }
        q_turn.next();
        if (++step == steps.end) step = steps.begin;
      }
      if constexpr (S::RoundsWeights) {
        wgmma_wait<0>(dk);
        release(shared.q_ring.empty[q_before(q_turn)]);
      }
      touch(dv);
      release(shared.kv_ring.empty[0]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = warp_key + lane / 4 + 8 * r;
      const bool present = key < work.keys;
      const auto row = [&](void* data, const Sm90Strides& strides) {
        return static_cast<T*>(data) + work.k_batch * strides.batch + work.key_head * strides.head +
               std::int64_t(work.k_start + key0 + key) * strides.row + column0;
      };
      store_row(row(p.dk, p.dk_strides), present, p.head_size - column0, dk, r, p.scale, false);
      store_row(row(p.dv, p.dv_strides), present, p.head_size - column0, dv, r, 1.f, false);
    }
    __syncwarp();
    if (lane == 0) shared.work_ring.empty[reader.turn.stage].arrive();
    reader.turn.next();
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  if (threadIdx.x == 0) {
    prefetch_map(p.q);
    prefetch_map(p.dout);
    prefetch_map(p.k);
    prefetch_map(p.v);
    constexpr int ConsumerWarps = 8;
    shared.kv_ring.init(2, ConsumerWarps);  // K and V
    shared.q_ring.init(2, ConsumerWarps);   // Q and the rows' terms
    shared.dout_ring.init(1, ConsumerWarps);
    shared.dq_ring.init(ConsumerWarps / S::DqPieces, 1);
    shared.work_ring.init(1, S::DqStages + ConsumerWarps);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<kServerRegisters>();
    if (threadIdx.x == 0)
      serve(p, shared);
    else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= S::DqStages)
      add_dq(p, shared, threadIdx.x / 32 - 1);
  } else {
    grow_registers<kConsumerRegisters>();
    compute(p, shared);
  }
}

// ---- Before and after
// ----------------------------------------------------------------------------

struct RowParams {
  const void *dout, *out;
  const float *lse, *dlse;
  void* dq;
  Sm90Strides dout_strides, out_strides, dq_strides;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  RowTerms* terms;
  const float* sums;  // of dQ
  std::uint32_t* tainted;
  int heads, head_size, q_rows, padded_rows;
  float scale;

  __device__ Sm90Sequence sequence(int index) const {
    Sm90Sequence found = all_alike;
    if (sequences)
      found = sequences[index];
    else
      found.q_batch = found.k_batch = index;
    return found;
  }
};

// Each row's terms; eight lanes per row. Rows that see nothing get a log-sum-exp that makes all
// their weights 0.
template <class T>
__global__ void row_terms_kernel(const RowParams p) {
  const int pair = blockIdx.y, index = pair / p.heads, head = pair % p.heads;
  const int row = blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8, part = threadIdx.x % 8;
  const Sm90Sequence sequence = p.sequence(index);
  const std::int64_t at = sequence.q_start + row;
  const bool present = row < min(sequence.q_rows, sequence.q_seeing);
  float sum = 0;
  if (present) {
    const T* const dout = static_cast<const T*>(p.dout) + sequence.q_batch * p.dout_strides.batch +
                          head * p.dout_strides.head + at * p.dout_strides.row;
    const T* const out = static_cast<const T*>(p.out) + sequence.q_batch * p.out_strides.batch +
                         head * p.out_strides.head + at * p.out_strides.row;
    for (int column = 8 * part; column < p.head_size; column += 64) {
      const uint4 a = *reinterpret_cast<const uint4*>(dout + column);
      const uint4 b = *reinterpret_cast<const uint4*>(out + column);
      const T* const x = reinterpret_cast<const T*>(&a);
      const T* const y = reinterpret_cast<const T*>(&b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += float(x[i]) * float(y[i]);
    }
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (part != 0 || row >= p.padded_rows) return;
  RowTerms terms{kInfinity, 0};
  if (present) {
    const std::int64_t i = (std::int64_t(sequence.q_batch) * p.heads + head) * p.q_rows + at;
    const float lse = p.lse[i];
    if (lse != -kInfinity) terms = {lse * kLog2e, sum - (p.dlse ? p.dlse[i] : 0.f)};
    if (fabsf(lse) > OnlineSoftmax::kExtreme && lse != -kInfinity) *p.tainted = 1;
  }
  p.terms[std::int64_t(pair) * p.padded_rows + row] = terms;
}

// Looks for NaN and Inf in a [batches, heads, rows, columns] tensor.
template <class T>
__global__ void find_tainted_kernel(const T* data, Sm90Strides strides, int heads, int rows,
                                    int vectors, std::uint32_t* tainted) {
  const T* const from =
      data + blockIdx.y / heads * strides.batch + blockIdx.y % heads * strides.head;
  bool finite = true;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * vectors;
       i += gridDim.x * blockDim.x)
    finite &= all_finite<T>(
        *reinterpret_cast<const uint4*>(from + i / vectors * strides.row + i % vectors * 8));
  if (!finite) *tainted = 1;
}

// dQ from the order of its sums to rows, scaled and rounded.
template <class S>
__global__ void finish_dq_kernel(const RowParams p) {
  using T = typename S::T;
  const int pair = blockIdx.y, step = blockIdx.x, index = pair / p.heads, head = pair % p.heads;
  const Sm90Sequence sequence = p.sequence(index);
  if (step * S::Rows >= sequence.q_rows) return;
  const float* const sums = p.sums + (std::int64_t(pair) * p.padded_rows + step * S::Rows) * S::D;
  const int consumer = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  float dq[S::ColumnsOfDq / 2];
#pragma unroll
  for (int i = 0; i < S::ColumnsOfDq / 8; ++i) {
    const float4 found = *reinterpret_cast<const float4*>(sums + dq_index<S>(consumer, i, thread));
    dq[4 * i] = found.x;
    dq[4 * i + 1] = found.y;
    dq[4 * i + 2] = found.z;
    dq[4 * i + 3] = found.w;
  }
  const int column0 = S::SplitRows ? 0 : consumer * S::ColumnsOfDq;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row =
        step * S::Rows + (S::SplitRows ? 64 * consumer : 0) + thread / 32 * 16 + lane / 4 + 8 * r;
    T* const to = static_cast<T*>(p.dq) + sequence.q_batch * p.dq_strides.batch +
                  head * p.dq_strides.head +
                  std::int64_t(sequence.q_start + row) * p.dq_strides.row + column0;
    store_row(to, row < sequence.q_rows, p.head_size - column0, dq, r, p.scale, false);
  }
}

// ---- Host --------------------------------------------------------------------------------------

// The workspace: sums of dQ, then turns, the tainted word (these three start as 0), then terms.
struct Workspace {
  std::int64_t pairs, padded_rows, turns;
  std::int64_t dq_bytes, zero_bytes, bytes;

  explicit Workspace(const Sm90Backward& call) {
    const Sm90Forward& f = call.forward;
    const std::int64_t D = f.head_size <= 64 ? 64 : f.head_size <= 128 ? 128 : 256;
    pairs = f.sequence_count * f.heads;
    padded_rows = (f.longest + kRowPadding - 1) / kRowPadding * kRowPadding;
    turns = pairs * (padded_rows / 64);
    dq_bytes = pairs * padded_rows * D * 4;
    zero_bytes = (dq_bytes + turns * 4 + 4 + 15) / 16 * 16;
    bytes = zero_bytes + pairs * padded_rows * std::int64_t(sizeof(RowTerms));
  }
};

template <class S>
const std::uint32_t* launch(const Sm90Backward& call, cudaStream_t stream) {
  using T = typename S::T;
  const Sm90Forward& f = call.forward;
  const Workspace space(call);
  std::byte* const base = static_cast<std::byte*>(call.workspace);
  auto* const turns = reinterpret_cast<std::uint32_t*>(base + space.dq_bytes);
  std::uint32_t* const tainted = turns + space.turns;
  auto* const terms = reinterpret_cast<RowTerms*>(base + space.zero_bytes);
  check_status(cudaMemsetAsync(base, 0, space.zero_bytes, stream), kName);

  RowParams rows{};
  rows.dout = call.dout;
  rows.out = f.out;
  rows.lse = f.lse;
  rows.dlse = call.dlse;
  rows.dq = call.dq;
  rows.dout_strides = call.dout_strides;
  rows.out_strides = f.out_strides;
  rows.dq_strides = call.dq_strides;
  rows.sequences = f.sequences;
  rows.all_alike = f.all_alike;
  rows.terms = terms;
  rows.sums = reinterpret_cast<const float*>(base);
  rows.tainted = tainted;
  rows.heads = int(f.heads);
  rows.head_size = int(f.head_size);
  rows.q_rows = int(f.q_rows);
  rows.padded_rows = int(space.padded_rows);
  rows.scale = f.scale;
  if (space.pairs * space.padded_rows > 0)
    row_terms_kernel<T>
        <<<dim3(unsigned(space.padded_rows / 32), unsigned(space.pairs)), 256, 0, stream>>>(rows);

  const bool masked = f.left >= 0 || f.right >= 0 || f.sequences ||
                      f.all_alike.k_visible < f.k_rows || f.all_alike.q_seeing < f.q_rows;
  if (masked) {
    const auto find = [&](const void* data, const Sm90Strides& strides, std::int64_t batches,
                          std::int64_t heads, std::int64_t extent) {
      if (batches * heads * extent == 0) return;
      const int vectors = int(f.head_size / 8);
      const unsigned blocks = unsigned(std::clamp<std::int64_t>(extent * vectors / 2048, 1, 64));
      find_tainted_kernel<T><<<dim3(blocks, unsigned(batches * heads)), 256, 0, stream>>>(
          static_cast<const T*>(data), strides, int(heads), int(extent), vectors, tainted);
    };
    find(f.q, f.q_strides, f.q_batches, f.heads, f.q_rows);
    find(call.dout, call.dout_strides, f.q_batches, f.heads, f.q_rows);
    find(f.k, f.k_strides, f.k_batches, f.key_heads, f.k_rows);
    find(f.v, f.v_strides, f.k_batches, f.key_heads, f.k_rows);
  }

  Params p{};
  const auto map = [&](const void* data, const Sm90Strides& strides, std::int64_t batches,
                       std::int64_t heads, std::int64_t extent, int box) {
    return make_tensor_map(
        {data, batches, heads, extent, f.head_size, strides.batch, strides.head, strides.row},
        f.dtype, box);
  };
  p.q = map(f.q, f.q_strides, f.q_batches, f.heads, f.q_rows, S::Rows);
  p.dout = map(call.dout, call.dout_strides, f.q_batches, f.heads, f.q_rows, S::Rows);
  p.k = map(f.k, f.k_strides, f.k_batches, f.key_heads, f.k_rows, S::Keys);
  p.v = map(f.v, f.v_strides, f.k_batches, f.key_heads, f.k_rows, S::Keys);
  p.dk = call.dk;
  p.dv = call.dv;
  p.dk_strides = call.dk_strides;
  p.dv_strides = call.dv_strides;
  p.terms = terms;
  p.dq = reinterpret_cast<float*>(base);
  p.turns = turns;
  p.ticket = f.ticket;
  p.sequences = f.sequences;
  p.all_alike = f.all_alike;
  p.heads = int(f.heads);
  p.key_heads = int(f.key_heads);
  p.group = int(f.heads / f.key_heads);
  p.head_size = int(f.head_size);
  p.padded_rows = int(space.padded_rows);
  p.left = window_side(f.left);
  p.right = window_side(f.right);
  p.key_blocks = int((call.longest_keys + S::Keys - 1) / S::Keys);
  p.works = int(f.sequence_count * f.key_heads * p.key_blocks);
  p.deterministic = call.deterministic;
  // Under a diagonal, block n reaches a step of rows one step later than block n + 1 does: taken
  // from the last to the first, shares of dQ come in the order in which they are ready. The longest
  // blocks are then last; without that need they are first.
  p.backward_in_keys = call.deterministic && f.right >= 0;
  p.scale = f.scale;
  if (p.works > 0) {
    constexpr int Bytes = sizeof(Shared<S>);
    static_assert(Bytes <= 227 * 1024);
    const auto kernel = attention_backward_kernel<S>;
    allow_shared_bytes(kernel, Bytes, kName);
    kernel<<<std::min(p.works, multiprocessors()), kThreads, Bytes, stream>>>(p);
  }
  if (space.pairs * space.padded_rows > 0)
    finish_dq_kernel<S>
        <<<dim3(unsigned(space.padded_rows / S::Rows), unsigned(space.pairs)), 256, 0, stream>>>(
            rows);
  check_status(cudaGetLastError(), kName);
  return tainted;
}

template <class T>
const std::uint32_t* launch_for(const Sm90Backward& call, cudaStream_t stream) {
  if (call.forward.head_size <= 64) return launch<Shape<T, 64, 128, 128, 2, 2, 2>>(call, stream);
  if (call.forward.head_size <= 128) return launch<Shape<T, 128, 64, 128, 2, 2, 2>>(call, stream);
  return launch<Shape<T, 256, 64, 64, 2, 1, 1>>(call, stream);
}

}  // namespace

const char* why_not_sm90_backward(const Sm90Backward& call) {
  const Sm90Forward& f = call.forward;
  if (const char* why = why_not_sm90_forward(f)) return why;
  if (f.softcap > 0) return "softcap";
  if (f.sequence_count * f.heads > 65535) return "too many heads";
  const auto mapped = [&](const void* data, const Sm90Strides& s) {
    return can_map({data, 0, 0, 0, 0, s.batch, s.head, s.row});
  };
  if (!mapped(call.dout, call.dout_strides) || !mapped(call.dq, call.dq_strides) ||
      !mapped(call.dk, call.dk_strides) || !mapped(call.dv, call.dv_strides))
    return "rows of gradients are not 16-byte aligned";
  return nullptr;
}

std::int64_t sm90_backward_workspace(const Sm90Backward& call) { return Workspace(call).bytes; }

const std::uint32_t* attention_backward_sm90(const Sm90Backward& call, cudaStream_t stream) {
  if (call.forward.dtype == DType::bf16) return launch_for<__nv_bfloat16>(call, stream);
  return launch_for<__half>(call, stream);
}

}  // namespace qkv::cuda
