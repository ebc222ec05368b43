// Gradients by blocks of 128 keys (64 for large heads). A persistent block holds K and V of its
// keys and walks over the query rows that see any of them; dK and dV stay in registers, dQ is added
// up in memory.
//
//   warp 0, one lane   draws Works (a block of keys), copies K, V, and per step Q, dO and the rows'
//                      log-sum-exp and r
//   warps 1 and 2,     add each step's share of dQ to memory, turn about, in a fixed order if
//   one lane each      asked to
//   warp 3             looks through K and V where some row does not see them in full
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
#pragma once

#include "cuda/attention_backward_sm90_work.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::backward_sm90 {

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
          if (i > 0) shared.q_ring.empty[q_before(q_turn)].arrive_as_warp();
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
          shared.dout_ring.empty[dout_turn.stage].arrive_as_warp();
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
        shared.dq_ring.full[dq_turn.stage].arrive_as_warp();
        dq_turn.next();
        if (S::DqPieces == 2 && consumer == 0) {
          shared.dq_ring.wait_empty(dq_turn);
          dq_turn.next();
        }
        if constexpr (!S::RoundsWeights) {
          wgmma_wait<0>(dk);
          shared.q_ring.empty[q_turn.stage].arrive_as_warp();
        }
        q_turn.next();
        if (++step == steps.end) step = steps.begin;
      }
      if constexpr (S::RoundsWeights) {
        wgmma_wait<0>(dk);
        shared.q_ring.empty[q_before(q_turn)].arrive_as_warp();
      }
      touch(dv);
      shared.kv_ring.empty[0].arrive_as_warp();
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
    reader.release_as_warp();
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
    constexpr int Consumers = 8 * kArrivalsOfWarp;  // warps
    const int inspector = p.tainted ? kArrivalsOfWarp : 0;
    shared.kv_ring.init(2, Consumers + inspector);  // K and V
    shared.q_ring.init(2, Consumers);               // Q and the rows' terms
    shared.dout_ring.init(1, Consumers);
    shared.dq_ring.init(Consumers / S::DqPieces, 1);
    shared.work_ring.init(1, S::DqStages + Consumers + inspector);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<kServerRegisters>();
    if (threadIdx.x == 0)
      serve(p, shared);
    else if (threadIdx.x % 32 == 0 && threadIdx.x / 32 <= S::DqStages)
      add_dq(p, shared, threadIdx.x / 32 - 1);
    else if (threadIdx.x >= 96 && p.tainted)
      inspect(p, shared);
  } else {
    grow_registers<kConsumerRegisters>();
    compute(p, shared);
  }
}

}  // namespace qkv::cuda::backward_sm90
