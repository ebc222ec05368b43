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
#pragma once

#include "cuda/attention_forward_sm90_work.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::forward_sm90 {

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

// All that a pass without a watch can tell: the largest score of a warp's rows.
template <class S>
__device__ void store_largest(const Params& p, const Work& work, int row,
                              const OnlineSoftmax& softmax) {
  float top = -kInfinity;
  bool unknown = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= work.seeing || softmax.sum[r] == 0) continue;
    top = fmaxf(top, softmax.largest_score(r));
    unknown |= isnan(softmax.largest_score(r));
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
  unknown = __any_sync(0xffffffff, unknown);
  const std::int64_t pair = std::int64_t(work.index) * p.heads + work.head;
  if (threadIdx.x % 32 == 0)
    p.largest[(pair * p.row_blocks * S::Rows + work.row0 + row) / 16] = unknown ? NAN : top;
}

// What rows `row` and `row + 8` of the block have told.
template <class S>
__device__ void store_statistics(const Params& p, const Work& work, int row,
                                 const typename S::Watch& watch, const OnlineSoftmax& softmax) {
  const int lane = threadIdx.x % 4, at = row + 8 * (lane % 2);  // the row of this lane
  RowTold told = watch.finish(softmax, p.scale);
  const bool sees = at < work.seeing && (lane == 0 ? softmax.sum[0] : softmax.sum[1]) != 0;
  if (!sees) told.top = -kInfinity;
  if (lane >= 2) return;
  const std::int64_t pair = std::int64_t(work.index) * p.heads + work.head;
  p.told[pair * p.row_blocks * S::Rows + work.row0 + at] = told;
  if (at >= work.rows) return;
  const std::int64_t i =
      (std::int64_t(work.q_batch) * p.heads + work.head) * p.q_rows + work.q_start + work.row0 + at;
  const Sm90Statistics& to = p.statistics;
  if (to.entropy) to.entropy[i] = sees ? told.entropy : 0.f;
  if (to.top_weight) to.top_weight[i] = sees ? told.top_weight : 0.f;
  if (to.top_index) to.top_index[i] = sees ? (lane == 0 ? watch.top_key[0] : watch.top_key[1]) : -1;
}

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  // Taken from the first lane, so that the compiler knows it to be one for all, and what follows
  // from it too: which tiles are visited, and which are masked. It keeps that, and what products
  // are issued with, in registers of the warp.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - 4, consumer = warp / 4;
  // This thread's first row, and its warp's, within the block.
  const int warp_row = 16 * warp;
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
      const KeyRange seen = tiles_of_rows<S>(work, 64 * consumer);
      // What all rows of this warp see needs no mask. Rows that see nothing, or do not exist, need
      // one only where somebody watches.
      const bool all_see = !S::Statistics || warp_row + 16 <= work.seeing;
      const KeyRange unmasked =
          all_see
              ? tiles_within<S>(work.sight.of_all(work.row0 + warp_row, work.row0 + warp_row + 15),
                                kUnbounded)
              : KeyRange{0, 0};
      const auto seen_by = [&](int at) {
        return S::Statistics && at >= work.seeing ? KeyRange{0, 0} : work.sight.of(work.row0 + at);
      };
      const auto hide_tile = [&](int key0) {
        const KeyRange keys[2] = {seen_by(row), seen_by(row + 8)};
        if constexpr (S::Statistics)
          visit_seen(s, keys, key0, [&](float& x, std::uint32_t visible, std::uint32_t bit) {
            watch.count_or_hide(x, visible, bit);
          });
        else
          hide(s, keys, key0, -kInfinity);
      };
      // Scores of a tile to weights, in place; false if `o` keeps its scale.
      const auto weigh = [&](int tile) {
        if constexpr (S::Softcap) {
#pragma unroll
          for (float& x : s) x = tanh_fast(x * p.inner_scale);
        }
        const bool masked = tile < unmasked.begin || tile >= unmasked.end;
        if constexpr (S::Statistics) {
          watch.masked = masked;
          watch.key0 = tile * S::Keys;
        }
        if (masked) hide_tile(tile * S::Keys);
        return softmax.step(s, p.scale, factor, watch);
      };
      // Values of a tile have come, and are fit for the product.
      const auto wait_values = [&](int tile) {
        shared.v_ring.wait_full(turn);
        if (tile >= plain.begin && tile < plain.end) return;
        shared.inspected[turn.stage].wait(inspected_phases >> turn.stage & 1);
        inspected_phases ^= 1 << turn.stage;
      };

      // A tile that no row of this warpgroup sees.
      const auto pass_over = [&](int tile) {
        shared.k_ring.wait_full(turn);
        shared.k_ring.empty[turn.stage].arrive_as_warp();
        wait_values(tile);
        shared.v_ring.empty[turn.stage].arrive_as_warp();
        turn.next();
        turnstile.enter();
        turnstile.pass();
      };

      int tile = tiles.end - 1;
      shared.q_ring.wait_full(q_turn);
      for (; tile >= seen.end; --tile) pass_over(tile);
      shared.k_ring.wait_full(turn);
      issue_scores(turn.stage);
      wgmma_wait<0>(s);
      shared.k_ring.empty[turn.stage].arrive_as_warp();
      weigh(tile);
      pack_operands<T>(weights, s);

      for (; tile > seen.begin; --tile) {
        Turn<S::Stages> next = turn;
        next.next();
        shared.k_ring.wait_full(next);
        turnstile.enter();
        issue_scores(next.stage);
        wait_values(tile);
        issue_output(turn.stage);
        turnstile.pass();
        wgmma_wait<1>(s);
        shared.k_ring.empty[next.stage].arrive_as_warp();
        const bool rescale = weigh(tile - 1);
        wgmma_wait<0>(o);
        touch(s);  // the weights under way are not overwritten before this point
        shared.v_ring.empty[turn.stage].arrive_as_warp();
        turn = next;
        if (rescale) {
#pragma unroll
          for (int i = 0; i < S::D / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
        pack_operands<T>(weights, s);
      }
      shared.q_ring.empty[0].arrive_as_warp();
      q_turn.next();

      wait_values(tile);
      issue_output(turn.stage);
      softmax.finish(p.scale, lse);
      wgmma_wait<0>(o);
      shared.v_ring.empty[turn.stage].arrive_as_warp();
      turn.next();
      while (--tile >= work.tiles.begin) pass_over(tile);
      if (work.tainted[0] || work.tainted[1] || work.tainted[2])
        restore_tainted<S>(p, work, work.row0 + row, o);
    }
    factor[0] = softmax.sum[0] == 0 ? 0 : 1 / softmax.sum[0];
    factor[1] = softmax.sum[1] == 0 ? 0 : 1 / softmax.sum[1];
    store_rows<S>(p, work, row, o, factor, lse);
    if constexpr (S::Statistics)
      store_statistics<S>(p, work, row, watch, softmax);
    else if (p.largest)
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
    constexpr int Consumers = 4 * S::Consumers * kArrivalsOfWarp;  // warps
    shared.q_ring.init(1, Consumers);
    shared.k_ring.init(1, Consumers);
    shared.v_ring.init(1, Consumers);
    for (Barrier& barrier : shared.requested) barrier.init(1);
    for (Barrier& barrier : shared.inspected) barrier.init(3 * kArrivalsOfWarp);
    shared.work_ring.init(1, 3 * kArrivalsOfWarp + Consumers);
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

}  // namespace qkv::cuda::forward_sm90
