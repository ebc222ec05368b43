// A persistent, warp-specialised forward pass. One block per multiprocessor takes blocks of query
// rows (a Work) until none is left. Its first warpgroup serves, the others compute:
//
//   warp 0, one lane   copies Q, K tiles and V tiles into rings of stages
//   warp 1             draws Works
//   warps 2 and 3      look through V tiles that some row may not see in full (see `inspect`)
//   warpgroups 1 ..    own 64 query rows each:
//
//     S_n = Q K_n^T                      under way while the weights of tile n+1 are made into out:
//     O  += P_{n+1} V_{n+1}              both products are issued together,
//     P_n = softmax step of S_n          and this runs beside the second one
//
// Tiles are taken from the last to the first, so the tiles cut by a diagonal come first. The first
// scores of a Work are made beside the last product of the Work before: to the tensor cores all
// Works of a block are one stream of tiles. The warpgroups pass a token round (`Turnstile`): while
// one computes a softmax, another's products fill the tensor cores.
#pragma once

#include "cuda/attention_forward_sm90_rows.cuh"
#include "cuda/attention_forward_sm90_serve.cuh"

namespace qkv::cuda::forward_sm90 {

// ---- Warpgroups 1 and on: products and softmax -------------------------------------------------

// Lets the computing warpgroups issue their products one after the other, round and round.
template <class S>
struct Turnstile {
  int id;  // of this warpgroup

  __device__ explicit Turnstile(int consumer) : id(1 + consumer) {
    if (consumer == S::Consumers - 1) pass();  // the first may go
  }
  __device__ void enter() const { named_wait(id, 256); }
  __device__ void pass() const { named_arrive(id == S::Consumers ? 1 : id + 1, 256); }
};

template <class S>
__device__ void compute(const Params& p, Shared<S>& shared) {
  using T = typename S::T;
  // Taken from the first lane, so that the compiler knows it to be one for all, and what follows
  // from it too: which tiles are visited, and which are masked. It keeps that, and what products
  // are issued with, in registers of the warp.
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) - 4, consumer = warp / 4;
  WorkReader<S> reader{shared};
  Turn<S::QStages> q_turn;
  Turn<S::Stages> turn;                // of the tile whose weights were made last
  std::uint32_t inspected_phases = 0;  // a bit per stage
  const Turnstile<S> turnstile(consumer);

  float o[S::D / 2], s[S::Keys / 2];
  std::uint32_t weights[S::Keys / 16][4];
  constexpr bool Drops = S::Pairs == Said::dropout;
  [[maybe_unused]] std::uint32_t kept[Drops ? S::Keys / 16 : 1][4];

  const auto issue_scores = [&](int stage) {
    const TileDescriptor q(shared.q[q_turn.stage] + 64 * consumer * kSlab, 0),
        k(shared.k[stage], 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
      const int slab = i / 4, within = i % 4 * 32;
      wgmma<T, inner, inner>(s, q.at_low(slab * S::Rows * 128 + within),
                             k.at_low(slab * S::Keys * 128 + within), i > 0);
    }
    wgmma_commit();
  };
  const auto issue_output = [&] {
    const TileDescriptor v(shared.v[turn.stage], S::Keys * 128);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::Keys / 16; ++i) wgmma<T, outer>(o, weights[i], v.at(i * 16 * 128), 1);
    wgmma_commit();
  };
  const auto clear_output = [&] {
#pragma unroll
    for (float& x : o) x = 0;
  };
  const auto release_keys = [&](int stage) { shared.k_ring.empty[stage].arrive_as_warp(); };
  const auto release_queries = [&] {  // of the Work whose last scores are made
    shared.q_ring.empty[q_turn.stage].arrive_as_warp();
    q_turn.next();
  };
  // Values of a tile have come, and are fit for the product.
  const auto wait_values = [&](bool are_inspected) {
    shared.v_ring.wait_full(turn);
    if (!are_inspected) return;
    shared.inspected[turn.stage].wait(inspected_phases >> turn.stage & 1);
    inspected_phases ^= 1 << turn.stage;
  };
  const auto release_values = [&] { shared.v_ring.empty[turn.stage].arrive_as_warp(); };
  // Tiles that no row of this warpgroup sees. Every tile takes one turn at the turnstile.
  const auto pass_keys = [&](Turn<S::Stages> at) {
    shared.k_ring.wait_full(at);
    release_keys(at.stage);
    turnstile.enter();
    turnstile.pass();
  };
  const auto pass_values = [&](const Work& work, KeyRange tiles) {
    for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
      wait_values(work.must_inspect(tile));
      release_values();
      turn.next();
    }
  };
  const auto pass_over = [&](const Work& work, KeyRange tiles) {
    for (int tile = tiles.end - 1; tile >= tiles.begin; --tile) {
      pass_keys(turn);
      pass_values(work, {tile, tile + 1});
    }
  };

  for (;;) {
    const Work* work = &reader.take();
    if (work->row0 < 0) break;
    OnlineSoftmax softmax;
    typename S::Watch watch;
    float factor[2];
    // Scores of a tile, whose keys are in `stage`, to weights, in place; false if `o` keeps its
    // scale.
    const auto weigh = [&](const Work& work, const Part& part, int tile, int stage) {
      if constexpr (!S::SaidInTiles) release_keys(stage);
      if constexpr (S::Pairs != Said::nothing && S::Pairs != Said::dropout)
        say_of_pairs(p, shared, work, warp, tile, stage, s);
      if constexpr (S::SaidInTiles) {
        __syncwarp();
        release_keys(stage);
      }
      if constexpr (S::Softcap) {
#pragma unroll
        for (float& x : s) x = tanh_fast(x * p.inner_scale);
      }
      const bool masked = tile < part.unmasked.begin || tile >= part.unmasked.end;
      if constexpr (S::Counts) {
        watch.masked = masked;
        watch.key0 = tile * S::Keys;
      }
      if (masked) {
        const auto seen_by = [&](int at) {
          return S::Counts && at >= work.seeing ? KeyRange{0, 0} : work.band.of(work.row0 + at);
        };
        const int row = 16 * warp + lane_now() / 4;
        const KeyRange keys[2] = {seen_by(row), seen_by(row + 8)};
        if constexpr (S::Counts)
          visit_seen(s, keys, tile * S::Keys, [&](float& x, std::uint32_t seen, std::uint32_t bit) {
            watch.count_or_hide(x, seen, bit);
          });
        else
          hide(s, keys, tile * S::Keys, S::Statistics ? kHiddenScore : -kInfinity);
      }
      return softmax.step(s, p.scale, factor, watch);
    };
    // The weights as they are multiplied with values.
    const auto pack = [&] {
      pack_operands<T>(weights, s);
      if constexpr (Drops) {
#pragma unroll
        for (int i = 0; i < S::Keys / 4; ++i) weights[i / 4][i % 4] &= kept[i / 4][i % 4];
      }
    };

    // Weights of `tile`, a tile of `work`, into the output, beside the scores of `next_tile`, which
    // become weights. With `ends`, that one is the first of another Work, and `work` is done.
    const auto step = [&](auto ends, int tile, const Work& next_work, const Part& next_part,
                          int next_tile, Turn<S::Stages> next) {
      const bool are_inspected = work->must_inspect(tile);
      shared.k_ring.wait_full(next);
      turnstile.enter();
      issue_scores(next.stage);
      wait_values(are_inspected);
      issue_output();
      turnstile.pass();
      float last_factor[2];
      if constexpr (ends) {
        finish_rows<S>(p, *work, warp, softmax, watch, last_factor);
        softmax = {};
        watch = {};
      }
      if constexpr (Drops) draw_kept<S>(p, next_work, warp, next_tile, kept);
      wgmma_wait<1>(s);
      const bool rescale = weigh(next_work, next_part, next_tile, next.stage);
      wgmma_wait<0>(o);
      touch(s);  // the weights under way are not overwritten before this point
      release_values();
      if constexpr (ends) {
        turn.next();
        pass_values(*work, {work->tiles.begin, tile});
        pass_values(next_work, {next_part.seen.end, next_work.tiles.end});
        restore_tainted<S>(p, *work, warp, o);
        store_rows<S>(p, shared, *work, warp, o, last_factor);
        clear_output();
        reader.release();
      } else {
        turn = next;
        if (rescale) {
#pragma unroll
          for (int i = 0; i < S::D / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
      }
      pack();
    };

    clear_output();
    if (work->sees_anything()) {
      Part part = work->parts[warp];
      pass_over(*work, {part.seen.end, work->tiles.end});
      int tile = part.seen.end - 1;
      shared.q_ring.wait_full(q_turn);
      shared.k_ring.wait_full(turn);
      if constexpr (S::QStages == 2) turnstile.enter();
      issue_scores(turn.stage);
      if constexpr (S::QStages == 2) turnstile.pass();
      if constexpr (Drops) draw_kept<S>(p, *work, warp, tile, kept);
      wgmma_wait<0>(s);
      weigh(*work, part, tile, turn.stage);
      pack();

      for (;;) {
        for (; tile > part.seen.begin; --tile)
          step(std::false_type(), tile, *work, part, tile - 1, turn.following());
        release_queries();
        if constexpr (S::QStages == 1) break;
        const Work& next_work = reader.following();
        if (next_work.row0 < 0 || !next_work.sees_anything()) break;
        const Part next_part = next_work.parts[warp];
        // Others wait for the values of this tile while more keys than that are passed over.
        const int passed = tile - work->tiles.begin + next_work.tiles.end - next_part.seen.end;
        if (passed > 1) break;
        Turn<S::Stages> next = turn.following();
        for (int i = 0; i < passed; ++i) {
          pass_keys(next);
          next.next();
        }
        shared.q_ring.wait_full(q_turn);
        const int next_tile = next_part.seen.end - 1;
        step(std::true_type(), tile, next_work, next_part, next_tile, next);
        work = &next_work;
        part = next_part;
        tile = next_tile;
      }

      wait_values(work->must_inspect(tile));
      issue_output();
      finish_rows<S>(p, *work, warp, softmax, watch, factor);
      wgmma_wait<0>(o);
      release_values();
      turn.next();
      pass_over(*work, {work->tiles.begin, tile});
      restore_tainted<S>(p, *work, warp, o);
    } else {
      finish_rows<S>(p, *work, warp, softmax, watch, factor);
    }
    store_rows<S>(p, shared, *work, warp, o, factor);
    reader.release();
  }
  if (S::Staged && threadIdx.x % 32 == 0) wait_sent<false>();
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
    shared.k_ring.init(S::SaidInTiles ? 2 : 1, Consumers);
    shared.v_ring.init(1, Consumers);
    for (Barrier& barrier : shared.requested) barrier.init(1);
    for (Barrier& barrier : shared.inspected) barrier.init(kInspectors * kArrivalsOfWarp);
    for (Barrier& barrier : shared.due) barrier.init(1);
    shared.work_ring.init(kArrivalsOfWarp, 1 + kInspectors * kArrivalsOfWarp + Consumers);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    shrink_registers<S::ServerRegisters>();
    if (threadIdx.x == 0)
      copy(p, shared);
    else if (threadIdx.x >= 64)
      inspect(shared);
    else if (threadIdx.x >= 32)
      draw(p, shared);
  } else {
    grow_registers<S::ConsumerRegisters>();
    compute(p, shared);
  }
}

}  // namespace qkv::cuda::forward_sm90
