// The warpgroups that compute, for heads of 192 and 256. dK and dV of 64 keys fill the registers of
// both, so the first makes P^T and owns dV, the second makes dS^T and owns dK, and each makes half
// of the columns of dQ (of 192: the first two thirds of them). What they need of each other goes
// through shared memory, two steps deep, and so the first can be a step ahead:
//
//   warpgroup 1   S^T(n) = K Q^T    P^T(n)     dV += P^T dO      dQ(n-1), columns 0 .. 127
//                                     |                            ^
//   shared memory                   P^T(n)                       dS^T(n-1), dS^T(n)
//                                     v                            ^
//   warpgroup 2   dP^T(n) = V dO^T    dS^T = P^T (dP^T - r)        |    dK += dS^T Q
//                                       `--------------------------'    dQ(n), columns 128 .. 255
//
// A warpgroup has room for 64 columns of dQ at a time, in registers and in shared memory.
#pragma once

#include "cuda/attention_backward_sm90_products.cuh"

namespace qkv::cuda::backward_sm90 {

template <class S>
struct WideShared : Shared<S> {
  uint4 weights[2][S::Keys * S::Rows / 8];  // P^T, as the threads of a warpgroup hold it
  Ring<2> weights_ring, ds_ring;
};

// Half of the columns of dQ, as one warpgroup makes them and sends them to memory, a slab at a
// time.
template <class S, int Half>
struct HalfOfDq {
  using T = typename S::T;
  static constexpr int Pieces = S::pieces_of(Half);

  WideShared<S>& shared;
  float sums[kSlab / 2];
  int piece = 0, lane = 0;  // which comes next, and which lane takes it

  __device__ explicit HalfOfDq(WideShared<S>& in) : shared(in) {}

  // dS K, for the columns of the next piece.
  __device__ void issue(int stage) {
    const TileDescriptor a(shared.ds[stage], 0);
    const TileDescriptor b(shared.k + (2 * Half + piece) * kSlab * S::Keys, S::Keys * 128);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::Keys / 16; ++n)
      wgmma<T, outer, outer>(sums, a.at(n * 16 * 128), b.at(n * 16 * 128), n > 0);
    wgmma_commit();
  }
  // Once the product is done.
  __device__ void send() {
    Ring<2>& ring = shared.dq_ring[Half];
    ring.empty[0].wait((Pieces == 2 ? piece : lane) ^ 1);
#pragma unroll
    for (int n = 0; n < kSlab / 8; ++n)
      *reinterpret_cast<float4*>(shared.dq[Half] + dq_index<S>(0, n, threadIdx.x % 128)) = {
          sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]};
    fence_async_proxy();
    __syncwarp();
    ring.full[lane].arrive_as_warp();
    if (++piece == Pieces) piece = 0, lane ^= 1;
  }
};

// ---- Warpgroup 1: weights and dV
// -----------------------------------------------------------------

template <class S>
__device__ void make_dv(const Params& p, WideShared<S>& shared) {
  using T = typename S::T;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp_key = thread / 32 * 16;
  const float scale = p.scale * kLog2e;
  WorkReader<S> reader{shared};
  Turn<1> kv_turn;
  Turn<S::QStages> q_turn;
  Turn<S::DoutStages> dout_turn;
  Turn<2> weights_turn, ds_turn;
  HalfOfDq<S, 0> dq(shared);
  float dv[S::D / 2], s[S::Rows / 2];

  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) dv[i] = 0;
    const KeyRange steps = work.steps;
    if (steps.begin < steps.end) {
      const int key0 = work.key0, seeing = work.seeing;
      const BandMask band = work.band;
      const KeyRange unmasked = rows_seeing_all(band, key0 + warp_key, 16, seeing);
      shared.kv_ring.wait_full(kv_turn);
      kv_turn.next();
      const auto issue_s = [&] {
        shared.q_ring.wait_full(q_turn);
        issue_scores<S>(shared.k, shared.q[q_turn.stage], s);
      };
      // P^T, once S^T is done, and for the other warpgroup too.
      std::uint32_t weights[S::Rows / 16][4];
      const auto make_weights = [&](int step) {
        const int row0 = step * S::Rows;
        if (row0 < unmasked.begin || row0 + S::Rows > unmasked.end) {
          const int key = key0 + warp_key + lane / 4;
          hide(s, {band.rows_of(key, seeing), band.rows_of(key + 8, seeing)}, row0, -kInfinity);
        }
        exponentiate<S>(s, shared.terms[q_turn.stage], nullptr, scale);
        pack_operands<T>(weights, s);
        shared.weights_ring.wait_empty(weights_turn);
#pragma unroll
        for (int n = 0; n < S::Rows / 16; ++n)
          shared.weights[weights_turn.stage][n * 128 + thread] = {weights[n][0], weights[n][1],
                                                                  weights[n][2], weights[n][3]};
        __syncwarp();
        shared.weights_ring.full[weights_turn.stage].arrive_as_warp();
        weights_turn.next();
        shared.q_ring.empty[q_turn.stage].arrive_as_warp();
        q_turn.next();
      };
      const auto issue_dv = [&] {
        shared.dout_ring.wait_full(dout_turn);
        issue_gradient<S>(dv, weights, shared.dout[dout_turn.stage]);
      };
      const auto release_dout = [&] {
        shared.dout_ring.empty[dout_turn.stage].arrive_as_warp();
        dout_turn.next();
      };
      const auto release_ds = [&] {
        shared.ds_ring.empty[ds_turn.stage].arrive_as_warp();
        ds_turn.next();
      };

      const int count = (steps.end - steps.begin) * p.group;
      int step = steps.begin;
      issue_s();
      wgmma_wait<0>(s);
      make_weights(step);
      issue_dv();
      wgmma_wait<0>(dv);
      release_dout();
      for (int i = 1; i < count; ++i) {  // dQ is of the step before
        if (++step == steps.end) step = steps.begin;
        issue_s();
        shared.ds_ring.wait_full(ds_turn);
        dq.issue(ds_turn.stage);
        wgmma_wait<1>(s);
        make_weights(step);
        wgmma_wait<0>(dq.sums);
        issue_dv();
        dq.send();
        dq.issue(ds_turn.stage);
        wgmma_wait<1>(dv);
        release_dout();
        wgmma_wait<0>(dq.sums);
        release_ds();
        dq.send();
      }
      shared.ds_ring.wait_full(ds_turn);
      dq.issue(ds_turn.stage);
      wgmma_wait<0>(dq.sums);
      dq.send();
      dq.issue(ds_turn.stage);
      wgmma_wait<0>(dq.sums);
      release_ds();
      shared.kv_ring.empty[0].arrive_as_warp();
      dq.send();
    }
    store_gradient<S>(work, p.dv, p.dv_strides, p.head_size, dv, warp_key, 1.f);
    __syncwarp();
    reader.release_as_warp();
  }
}

// ---- Warpgroup 2: dS and dK
// ----------------------------------------------------------------------

template <class S>
__device__ void make_dk(const Params& p, WideShared<S>& shared) {
  using T = typename S::T;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp_key = thread / 32 * 16;
  WorkReader<S> reader{shared};
  Turn<1> kv_turn;
  Turn<S::QStages> q_turn;
  Turn<S::DoutStages> dout_turn;
  Turn<2> weights_turn, ds_turn;
  HalfOfDq<S, 1> dq(shared);
  float dk[S::D / 2], dp[S::Rows / 2];

  for (;;) {
    const Work& work = reader.take();
    if (work.key0 < 0) return;
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) dk[i] = 0;
    const KeyRange steps = work.steps;
    if (steps.begin < steps.end) {
      shared.kv_ring.wait_full(kv_turn);
      kv_turn.next();
      const int count = (steps.end - steps.begin) * p.group;
      for (int i = 0; i < count; ++i) {
        shared.dout_ring.wait_full(dout_turn);
        issue_scores<S>(shared.v, shared.dout[dout_turn.stage], dp);
        wgmma_wait<0>(dp);
        shared.dout_ring.empty[dout_turn.stage].arrive_as_warp();
        dout_turn.next();

        std::uint32_t ds[S::Rows / 16][4];
        shared.weights_ring.wait_full(weights_turn);
#pragma unroll
        for (int n = 0; n < S::Rows / 16; ++n) {
          const uint4 four = shared.weights[weights_turn.stage][n * 128 + thread];
          ds[n][0] = four.x, ds[n][1] = four.y, ds[n][2] = four.z, ds[n][3] = four.w;
        }
        __syncwarp();
        shared.weights_ring.empty[weights_turn.stage].arrive_as_warp();
        weights_turn.next();
        shared.q_ring.wait_full(q_turn);  // for the rows' terms
        {
          float weights[S::Rows / 2];
          unpack_operands<T>(weights, ds);
          differentiate<S>(dp, weights, shared.terms[q_turn.stage]);
        }
        pack_operands<T>(ds, dp);
        shared.ds_ring.wait_empty(ds_turn);
#pragma unroll
        for (int n = 0; n < S::Rows / 16; ++n)
          store_matrices(shared_address(shared.ds[ds_turn.stage]) +
                             swizzled(S::Keys, warp_key + lane % 16, 2 * n + lane / 16),
                         ds[n]);
        fence_async_proxy();
        __syncwarp();
        shared.ds_ring.full[ds_turn.stage].arrive_as_warp();
        shared.ds_ring.wait_full(ds_turn);

        dq.issue(ds_turn.stage);
        issue_gradient<S>(dk, ds, shared.q[q_turn.stage]);
        wgmma_wait<1>(dq.sums);
        const auto release_ds = [&] {
          shared.ds_ring.empty[ds_turn.stage].arrive_as_warp();
          ds_turn.next();
        };
        const auto release_queries = [&] {
          __syncwarp();
          shared.q_ring.empty[q_turn.stage].arrive_as_warp();
          q_turn.next();
        };
        if constexpr (dq.Pieces == 1) {
          release_ds();
          dq.send();
          wgmma_wait<0>(dk);
          release_queries();
        } else {
          dq.send();
          dq.issue(ds_turn.stage);
          wgmma_wait<1>(dk);
          release_queries();
          wgmma_wait<0>(dq.sums);
          release_ds();
          dq.send();
        }
      }
      shared.kv_ring.empty[0].arrive_as_warp();
    }
    store_gradient<S>(work, p.dk, p.dk_strides, p.head_size, dk, warp_key, p.scale);
    __syncwarp();
    reader.release_as_warp();
  }
}

}  // namespace qkv::cuda::backward_sm90
