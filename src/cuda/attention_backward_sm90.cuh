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
// Above D = 128 the sums dK and dV of 64 keys fill two warpgroups' registers, and the warpgroups
// share the work in another way: attention_backward_sm90_wide.cuh.
//
// Products run beside arithmetic: dP^T beside the exponentials, dV beside dS^T, dK beside the way
// of dQ to memory.
#pragma once

#include "cuda/attention_backward_sm90_products.cuh"
#include "cuda/attention_backward_sm90_wide.cuh"

namespace qkv::cuda::backward_sm90 {

// ---- Warpgroups 1 and 2 ------------------------------------------------------------------------

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  constexpr int Both = 1;  // the numbered barrier of the two warpgroups
  const int consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int consumer_key = 64 * consumer, warp_key = consumer_key + thread / 32 * 16;
  WorkReader<S> reader{shared};
  Turn<1> kv_turn;
  Turn<S::QStages> q_turn;
  Turn<S::DoutStages> dout_turn;
  Turn<2> dq_turn;
  Turn<1> said_turn;
  // Of scores as they reach the exponential.
  const float scale = S::Softcap                                ? p.softcap * kLog2e
                      : S::Biased || S::Pairs == Said::distance ? kLog2e
                                                                : p.scale * kLog2e;
  const float inner_scale = S::Softcap ? p.scale / p.softcap : 0;

  float dk[S::D / 2], dv[S::D / 2], s[S::Rows / 2];
  [[maybe_unused]] float far_sums[2] = {0, 0};
  const auto q_before = [](Turn<S::QStages> turn) {
    return (turn.stage + S::QStages - 1) % S::QStages;
  };

  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) dk[i] = dv[i] = 0;
    const KeyRange steps = work.steps;
    const int key0 = work.key0, seeing = work.seeing;
    const BandMask band = work.band;
    if (steps.begin < steps.end) {
      const KeyRange unmasked = rows_seeing_all(band, key0 + warp_key, 16, seeing);
      shared.kv_ring.wait_full(kv_turn);
      kv_turn.next();
      const int count = (steps.end - steps.begin) * p.group;
      int step = steps.begin, head = work.key_head * p.group;
      for (int i = 0; i < count; ++i) {
        float dp[S::Rows / 2];
        const T* const q_rows = shared.q[q_turn.stage];
        const T* const dout_rows = shared.dout[dout_turn.stage];
        shared.q_ring.wait_full(q_turn);
        issue_scores<S>(shared.k + consumer_key * kSlab, q_rows, s);
        if constexpr (S::RoundsWeights) {  // dK of the step before is done, its rows are free
          wgmma_wait<1>(dk);
          if (i > 0) shared.q_ring.empty[q_before(q_turn)].arrive_as_warp();
        }
        shared.dout_ring.wait_full(dout_turn);
        issue_scores<S>(shared.v + consumer_key * kSlab, dout_rows, dp);
        wgmma_wait<1>(s);

        const int row0 = step * S::Rows;
        if constexpr (S::Softcap) {
#pragma unroll
          for (float& x : s) x = tanh_fast(x * inner_scale);
        }
        if constexpr (S::Pairs == Said::distance)
          add_by_distance<S>(p, work, head, key0 + warp_key, row0, s);
        if constexpr (S::SaidInTiles) {
          const unsigned char* const said = shared.said + consumer * S::BytesOfSaidSlab;
          shared.said_ring.wait_full(said_turn);
          said_turn.next();
          if constexpr (S::Biased)
            add_bias_tile<S>(said, thread / 32, p.scale, s);
          else
            hide_by_tile<S>(said, thread / 32, s);
          __syncwarp();
          shared.said_ring.empty[0].arrive_as_warp();
        }
        if (row0 < unmasked.begin || row0 + S::Rows > unmasked.end) {
          const int key = key0 + warp_key + lane / 4;
          hide(s, {band.rows_of(key, seeing), band.rows_of(key + 8, seeing)}, row0, -kInfinity);
        }
        std::uint32_t weights[S::Rows / 16][4];
        exponentiate<S>(s, shared.terms[q_turn.stage], shared.tops[q_turn.stage], scale);
        pack_operands<T>(weights, s);
        [[maybe_unused]] std::uint32_t whole[S::Rows / 16][4];  // weights before dropout
        if constexpr (S::Drops) {
          pack_operands<T>(whole, s);
          drop_weights<S>(p, work, head, key0 + warp_key, row0, weights);
        }
        issue_gradient<S>(dv, weights, dout_rows);
        wgmma_wait<1>(dp);
        if constexpr (S::Drops) {
          differentiate_dropped<S>(dp, whole, weights, shared.terms[q_turn.stage]);
        } else {
          if constexpr (S::RoundsWeights) unpack_operands<T>(s, weights);
          differentiate<S>(dp, s, shared.terms[q_turn.stage], 1 / scale);
        }
        if constexpr (S::Pairs == Said::distance) {
          if (p.far_sums != nullptr)
            sum_by_distance<S>(p, work, key0 + warp_key, row0, dp, far_sums);
        }
        std::uint32_t ds[S::Rows / 16][4];
        pack_operands<T>(ds, dp);
        // Two buffers: the other warpgroup may still read the one of the step before.
        T* const ds_shared = shared.ds[i % 2];
#pragma unroll
        for (int n = 0; n < S::Rows / 16; ++n)
          store_matrices(shared_address(ds_shared) +
                             swizzled(S::Keys, warp_key + lane % 16, 2 * n + lane / 16),
                         ds[n]);
        fence_async_proxy();
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
        issue_gradient<S>(dk, ds, q_rows);
        wgmma_wait<1>(dq);
        shared.dout_ring.empty[dout_turn.stage].arrive_as_warp();
        dout_turn.next();
        shared.dq_ring[0].wait_empty(dq_turn);
        float* const to = shared.dq[dq_turn.stage];
#pragma unroll
        for (int n = 0; n < S::ColumnsOfDq / 8; ++n)
          *reinterpret_cast<float4*>(to + dq_index<S>(consumer, n, thread)) = {
              dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]};
        fence_async_proxy();
        __syncwarp();
        shared.dq_ring[0].full[dq_turn.stage].arrive_as_warp();
        dq_turn.next();
        if constexpr (!S::RoundsWeights) {
          wgmma_wait<0>(dk);
          shared.q_ring.empty[q_turn.stage].arrive_as_warp();
        }
        q_turn.next();
        if (++step == steps.end) {
          if constexpr (S::Pairs == Said::distance) {
            if (p.far_sums != nullptr) store_far_sums<S>(p, work, head, far_sums);
          }
          step = steps.begin, ++head;
        }
      }
      if constexpr (S::RoundsWeights) {
        wgmma_wait<0>(dk);
        shared.q_ring.empty[q_before(q_turn)].arrive_as_warp();
      }
      touch(dv);
      shared.kv_ring.empty[0].arrive_as_warp();
    }
    store_gradient<S>(work, p.dk, p.dk_strides, p.head_size, dk, warp_key, p.scale * p.kept);
    store_gradient<S>(work, p.dv, p.dv_strides, p.head_size, dv, warp_key, p.kept);
    __syncwarp();
    reader.release_as_warp();
  }
}

template <class S>
using SharedOf = std::conditional_t<S::Wide, WideShared<S>, Shared<S>>;

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    attention_backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  SharedOf<S>& shared = *reinterpret_cast<SharedOf<S>*>(memory);
  if (threadIdx.x == 0) {
    prefetch_map(p.q);
    prefetch_map(p.dout);
    prefetch_map(p.k);
    prefetch_map(p.v);
    constexpr int Warpgroup = 4 * kArrivalsOfWarp, Both = 2 * Warpgroup;
    const int inspector = p.tainted ? kArrivalsOfWarp : 0;
    shared.kv_ring.init(2, Both + inspector);     // K and V
    shared.q_ring.init(S::Biased ? 3 : 2, Both);  // Q and the rows' terms
    shared.dout_ring.init(1, Both);
    shared.said_ring.init(1, Both);
    for (Ring<2>& ring : shared.dq_ring) ring.init(S::Wide ? Warpgroup : Both, 1);
    shared.work_ring.init(1, 2 + Both + inspector);
    if constexpr (S::Wide) {
      shared.weights_ring.init(Warpgroup, Warpgroup);
      shared.ds_ring.init(Warpgroup, Both);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<kServerRegisters>();
    if (threadIdx.x == 0)
      serve<S>(p, shared);
    else if (threadIdx.x == 32 || threadIdx.x == 64)
      add_dq<S>(p, shared, threadIdx.x / 32 - 1);
    else if (threadIdx.x >= 96 && p.tainted)
      inspect<S>(p, shared);
  } else {
    grow_registers<kConsumerRegisters>();
    if constexpr (!S::Wide)
      compute(p, shared);
    else if (threadIdx.x < 256)
      make_dv(p, shared);
    else
      make_dk(p, shared);
  }
}

}  // namespace qkv::cuda::backward_sm90
