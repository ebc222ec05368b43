// The first warpgroup of a block of the forward pass, which serves the others: see
// attention_forward_sm90.cuh.
#pragma once

#include "cuda/attention_forward_sm90_pairs.cuh"
#include "cuda/tile/finite.cuh"

namespace qkv::cuda::forward_sm90 {

// ---- Warp 0: copies --------------------------------------------------------------------------

template <class S>
__device__ void copy(const Params& p, Shared<S>& shared) {
  Turn<S::QStages> q_turn;
  Turn<S::Stages> k_turn, v_turn;
  bool has_queries = false;  // of this Work: they came with the one before
  const auto load_queries = [&](const Work& work) {
    shared.q_ring.wait_empty(q_turn);
    load_tile<S::Rows, S::D>(shared.q[q_turn.stage], p.q, shared.q_ring.full[q_turn.stage],
                             work.q_start + work.row0, work.head, work.q_batch, Keep::briefly);
    q_turn.next();
  };
  for (Turn<kWorks> work_turn;; work_turn.next()) {
    shared.work_ring.wait_full(work_turn);
    const Work& work = shared.work[work_turn.stage];
    if (work.row0 < 0) return;
    const KeyRange tiles = work.tiles, plain = work.plain;
    const int key_head = work.head / p.group, k_batch = work.k_batch, k_start = work.k_start;
    const auto load_keys = [&](int tile) {
      shared.k_ring.wait_empty(k_turn);
      load_tile<S::Keys, S::D>(shared.k[k_turn.stage], p.k, shared.k_ring.full[k_turn.stage],
                               k_start + tile * S::Keys, key_head, k_batch, Keep::long_time);
      if constexpr (S::SaidInTiles) load_said(p, shared, work, tile, k_turn.stage);
      k_turn.next();
    };
    const auto load_values = [&](int tile) {
      shared.v_ring.wait_empty(v_turn);
      load_tile<S::Keys, S::D>(shared.v[v_turn.stage], p.v, shared.v_ring.full[v_turn.stage],
                               k_start + tile * S::Keys, key_head, k_batch, Keep::long_time);
      if (tile < plain.begin || tile >= plain.end) shared.requested[v_turn.stage].arrive();
      v_turn.next();
    };
    Barrier& due = shared.due[work_turn.stage];
    if (tiles.end - tiles.begin <= kLead) due.arrive();
    // In the order of use: the keys of a tile are needed one step before its values.
    if (work.sees_anything()) {
      load_keys(tiles.end - 1);
      if (!has_queries) load_queries(work);
      for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
        load_keys(tile - 1);
        load_values(tile);
        if (tile - tiles.begin == kLead) due.arrive();
      }
      // Queries come from far: those of the next Work are asked for while there is time.
      has_queries = false;
      const Turn<kWorks> next = work_turn.following();
      if (S::QStages == 2 && shared.work_ring.full[next.stage].has_passed(next.phase)) {
        const Work& next_work = shared.work[next.stage];
        has_queries = next_work.row0 >= 0 && next_work.sees_anything();
        if (has_queries) load_queries(next_work);
      }
      load_values(tiles.begin);
    }
    shared.work_ring.empty[work_turn.stage].arrive();
  }
}

// ---- Warp 1: Works -----------------------------------------------------------------------------

// A Work takes thousands of cycles to make: copies must not wait for it, nor those who compute.
template <class S>
__device__ void draw(const Params& p, Shared<S>& shared) {
  const int total = p.pairs * p.row_blocks, lane = threadIdx.x % 32;
  int ticket = blockIdx.x;
  for (Turn<kWorks> turn;; turn.next()) {
    shared.work_ring.wait_empty(turn);
    Work& work = shared.work[turn.stage];
    const bool none = ticket >= total;
    if (lane == 0) {
      if (none)
        work.row0 = -1;
      else
        make_work<S>(p, ticket, work);
    }
    __syncwarp();
    if (!none && lane < 4 * S::Consumers) work.parts[lane] = part_of<S>(work, lane);
    __syncwarp();
    shared.work_ring.full[turn.stage].arrive_as_warp();
    if (none) return;
    shared.due[turn.stage].wait(turn.phase);
    // Whoever draws the last ticket that anyone will ever draw leaves a zero for the next launch.
    unsigned drawn = 0;
    if (lane == 0) {
      drawn = atomicAdd(p.ticket, 1u);
      if (drawn == unsigned(total) - 1) *p.ticket = 0;
    }
    ticket = int(__shfl_sync(0xffffffff, drawn, 0) + gridDim.x);
  }
}

// ---- Warps 2 and 3: values that must not be felt -----------------------------------------------

// Takes values that are not finite out of tiles with hidden pairs, before the product (finite.cuh
// says why). A tile that had some which a row may see is marked, for `restore_tainted`.
template <class S>
__device__ void inspect(Shared<S>& shared) {
  using T = typename S::T;
  const int warp = threadIdx.x / 32 - (4 - kInspectors), lane = threadIdx.x % 32;
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
      const int seen = work.band.of(work.row0 + work.seeing - 1).end - tile * S::Keys;
      uint4* const values = reinterpret_cast<uint4*>(shared.v[stage]);
      constexpr int Vectors = S::Keys * S::D / 8, Step = 32 * kInspectors;
      bool strange = false, taint = false;
#pragma unroll 8
      for (int i = 32 * warp + lane; i < Vectors; i += Step) strange |= !all_finite<T>(values[i]);
      for (int i = 32 * warp + lane; strange && i < Vectors; i += Step) {
        const uint4 found = values[i];
        if (all_finite<T>(found)) continue;
        values[i] = only_finite<T>(found);
        taint |= i / 8 % S::Keys < seen;
      }
      fence_async_proxy();
      if (__any_sync(0xffffffff, taint) && lane == 0) work.tainted[warp] = true;
      __syncwarp();
      shared.inspected[stage].arrive_as_warp();
    }
    copied += tiles.end - tiles.begin;
    reader.release();
  }
}

}  // namespace qkv::cuda::forward_sm90
