// What a block of the forward pass works on, and its first warpgroup, which serves: see
// attention_forward_sm90.cuh.
#pragma once

#include "cuda/attention_forward_sm90.h"
#include "cuda/tile/barrier.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/statistics.cuh"
#include "cuda/tile/tma.cuh"

namespace qkv::cuda::forward_sm90 {

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
  // Two where there is room, in shared memory and in registers: then the next Work begins before
  // this one has ended.
  static constexpr int Room = 225 * 1024 / 2 / D - 2 * Stages * Keys;  // for rows
  static constexpr int QStages = 3 * Rows <= Room && !(Statistics && Consumers == 3) ? 2 : 1;
  // Whether the output goes to memory by way of shared memory.
  static constexpr bool Staged = (1 + QStages) * Rows <= Room;
  // 65536 registers, in steps of 8 per thread; the kernel starts with an even share.
  static constexpr int ConsumerRegisters = Consumers == 2 ? 240 : 160;
  static constexpr int ServerRegisters = Consumers == 2 ? 24 : 32;
  // Ping-pong pays while a softmax is long beside its products.
  static constexpr bool PingPong = D <= 128;
};

struct Params {
  CUtensorMap q, k, v;
  CUtensorMap out_rows;  // 16 at a time
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
  float* largest;  // [pairs][row_blocks][warps]: scores, for a pass without a watch, or null
  RowTold* told;   // [pairs][row_blocks][Rows], for a pass with one
};

inline constexpr int kInspectors = 2;  // warps
inline constexpr int kWorks = 3;       // at once: being made, copied and computed

// Of the tiles of a Work: those that a warp's warpgroup takes, from the last to the first (it
// passes over the others), and those of which all rows of the warp see all keys, so that no mask is
// needed.
struct alignas(16) Part {
  KeyRange seen, unmasked;
};

// A block of query rows and the tiles of keys it visits.
struct Work {
  int index, head, row0;  // of the sequence; row0 within it, -1: no more work
  int q_batch, k_batch, q_start, k_start;
  int rows;    // that exist, from row0 on
  int seeing;  // of which see anything
  Sight sight;
  KeyRange tiles;  // visited, from the last to the first
  KeyRange plain;  // of which these have no hidden pair over values that could be anything
  // By inspecting warp: values that are not finite were taken out.
  bool tainted[kInspectors];
  // Of row0: among the rows of lse, and among those of RowTold.
  std::int64_t first_row, first_told;
  Part parts[12];  // of the computing warps

  __device__ bool must_inspect(int tile) const { return tile < plain.begin || tile >= plain.end; }
  __device__ bool sees_anything() const { return tiles.begin < tiles.end; }
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
  typename S::T q[S::QStages][S::Rows * S::D];
  typename S::T k[S::Stages][S::Keys * S::D];
  typename S::T v[S::Stages][S::Keys * S::D];
  typename S::T out[S::Staged ? 4 * S::Consumers : 1][S::Staged ? 16 * S::D : 1];  // by warp
  Ring<S::QStages> q_ring;
  Ring<S::Stages> k_ring, v_ring;
  Barrier requested[S::Stages], inspected[S::Stages];  // of values, where a look is needed
  Ring<kWorks> work_ring;
  Barrier next_work;  // is due: the copies of the one before have begun
  Work work[kWorks];
};

// ---- Work ------------------------------------------------------------------------------------

// Long rows first (the last rows of a causal mask see most), and few heads at a time, so that
// their keys and values stay in L2.
template <class S>
__device__ void make_work(const Params& p, int ticket, Work& work) {
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
  work.first_row =
      (std::int64_t(work.q_batch) * p.heads + work.head) * p.q_rows + work.q_start + work.row0;
  work.first_told = (std::int64_t(pair) * p.row_blocks + block) * S::Rows;
  if (work.seeing > 0) {
    const int last = work.row0 + work.seeing - 1;
    const KeyRange some = work.sight.of_some(work.row0, last);
    if (some.begin < some.end)
      work.tiles = {some.begin / S::Keys, (some.end + S::Keys - 1) / S::Keys};
    // Beyond the tensor's last row the copy gives zeros.
    work.plain = tiles_within<S>(work.sight.of_all(work.row0, last), p.k_rows - sequence.k_start);
  }
}

// Of the tiles that a Work visits, those of which some of its rows row .. row + 63 see a key; one
// at least.
template <class S>
__device__ KeyRange tiles_of_rows(const Work& work, int row) {
  const int last = min(row + 64, work.seeing) - 1;
  if (row > last) return {work.tiles.begin, work.tiles.begin + 1};
  const KeyRange some = work.sight.of_some(work.row0 + row, work.row0 + last);
  const int begin = min(max(some.begin / S::Keys, work.tiles.begin), work.tiles.end - 1);
  const int end = min((some.end + S::Keys - 1) / S::Keys, work.tiles.end);
  return {begin, max(end, begin + 1)};
}

template <class S>
__device__ Part part_of(const Work& work, int warp) {
  const int row = 16 * warp, last = row + 15;
  // Rows that see nothing, or do not exist, need a mask only where somebody watches.
  const bool all_see = !S::Statistics || last < work.seeing;
  const KeyRange keys =
      all_see ? work.sight.of_all(work.row0 + row, work.row0 + last) : KeyRange{0, 0};
  return {tiles_of_rows<S>(work, row / 64 * 64), tiles_within<S>(keys, kUnbounded)};
}

// The drawing warp hands Works out; everyone else takes them in the same order.
template <class S>
struct WorkReader {
  Shared<S>& shared;
  Turn<kWorks> turn;

  __device__ Work& take() {
    shared.work_ring.wait_full(turn);
    return shared.work[turn.stage];
  }
  // The one after it, which is not taken yet.
  __device__ Work& following() {
    const Turn<kWorks> next = turn.following();
    shared.work_ring.wait_full(next);
    return shared.work[next.stage];
  }
  // The Work taken last is no longer read.
  __device__ void release() {
    __syncwarp();
    shared.work_ring.empty[turn.stage].arrive_as_warp();
    turn.next();
  }
};

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
    shared.next_work.arrive();
    const KeyRange tiles = work.tiles, plain = work.plain;
    const int key_head = work.head / p.group, k_batch = work.k_batch, k_start = work.k_start;
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
    if (work.sees_anything()) {
      load_keys(tiles.end - 1);
      if (!has_queries) load_queries(work);
      for (int tile = tiles.end - 1; tile > tiles.begin; --tile) {
        load_keys(tile - 1);
        load_values(tile);
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
  std::uint32_t phase = 0;
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
    // What is drawn late is drawn by whoever is free. So towards the end, and where there is time
    // to make it, the next one is not drawn before it is due.
    const bool is_long = work.tiles.end - work.tiles.begin > 8;
    if (is_long || ticket + 2 * int(gridDim.x) >= total) shared.next_work.wait(phase);
    phase ^= 1;
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
      const int seen = work.sight.of(work.row0 + work.seeing - 1).end - tile * S::Keys;
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

// Adds what was taken out of V to the rows of a warp that see it. Slow, and never on the path of
// ordinary values.
template <class S, int Count>
__device__ void restore_tainted(const Params& p, const Work& work, int warp, float (&o)[Count]) {
  using T = typename S::T;
  if (!work.tainted[0] && !work.tainted[1]) return;
  const int row = work.row0 + 16 * warp + threadIdx.x % 32 / 4;
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

}  // namespace qkv::cuda::forward_sm90
