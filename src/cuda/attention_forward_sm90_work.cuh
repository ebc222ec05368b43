// What a block of the forward pass works on: see attention_forward_sm90.cuh.
#pragma once

#include "cuda/attention_forward_sm90.h"
#include "cuda/tile/barrier.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/statistics.cuh"
#include "cuda/tile/tma.cuh"

namespace qkv::cuda::forward_sm90 {

// What is summed up while scores pass: each watches for what the ones before it do, too.
enum class Watched { no, entropy, moments, keys };
template <Watched What>
using WatchOf = std::conditional_t<
    What == Watched::no, NoWatch,
    std::conditional_t<What == Watched::entropy, EntropyWatch, ScoreWatch<What == Watched::keys>>>;

// Tile sizes. Registers of a computing thread: D/2 for O, Keys/2 for S and Keys/4 for P.
template <class Element, int HeadSize, int KeysPerTile, int Warpgroups, int StageCount,
          bool Capped = false, Watched What = Watched::no, Said OfPairs = Said::nothing>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Keys = KeysPerTile;
  static constexpr int Consumers = Warpgroups;
  static constexpr int Stages = StageCount;
  static constexpr bool Softcap = Capped;
  using Watch = WatchOf<What>;
  static constexpr bool Statistics = What != Watched::no;
  static constexpr bool Counts = What >= Watched::moments;  // visible scores
  static constexpr int Rows = 64 * Consumers;
  static constexpr int Threads = 128 * (1 + Consumers);
  static constexpr Said Pairs = OfPairs;
  // Whether what is said of pairs comes as tiles, with the keys they belong to, and may hide pairs.
  static constexpr bool SaidInTiles = Pairs == Said::bias || Pairs == Said::mask;
  static constexpr int SaidBytes = !SaidInTiles ? 0 : (Pairs == Said::bias ? 2 : 1) * Rows * Keys;
  static_assert(!SaidInTiles || Keys % kSlab == 0);
  // Whether scores are more than products times a scale, which then comes first.
  static constexpr bool ChangesScores = Pairs == Said::bias || Pairs == Said::distance;
  // Two where there is room, in shared memory and in registers: then the next Work begins before
  // this one has ended.
  static constexpr int Room =
      (225 * 1024 - Stages * SaidBytes) / 2 / D - 2 * Stages * Keys;  // for rows
  static constexpr int QStages = 3 * Rows <= Room && !(Counts && Consumers == 3) ? 2 : 1;
  // Whether the output goes to memory by way of shared memory.
  static constexpr bool Staged = (1 + QStages) * Rows <= Room;
  // 65536 registers, in steps of 8 per thread; the kernel starts with an even share.
  static constexpr int ConsumerRegisters = Consumers == 2 ? 240 : 160;
  static constexpr int ServerRegisters = Consumers == 2 ? 24 : 32;
};

struct Params {
  CUtensorMap q, k, v;
  CUtensorMap out_rows;  // 16 at a time
  CUtensorMap said;      // of pairs, in tiles
  void* out;
  const void* values;  // V again, for the rare path that reads it by hand
  float* lse;
  const float* sinks;  // [heads], or null
  Sm90Strides out_strides, v_strides;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  std::uint32_t* ticket;
  int heads, group, head_size, q_rows, k_rows;
  int left, right;
  int row_blocks;     // per sequence and head
  int pairs;          // of sequence and head
  bool by_head;       // the same head of all sequences before the next head: they share a bias
  int pairs_at_once;  // whose keys and values share L2
  float scale;        // of scores, times log2(e)
  float inner_scale;  // with softcap: score / softcap before tanh; with a bias: of products
  Sm90Pairs of_pairs;
  Sm90Statistics statistics;
  float* largest;  // [pairs][row_blocks][warps]: scores, for a pass without a watch, or null
  RowTold* told;   // [pairs][row_blocks][Rows], for a pass with one
  Sm90RowTerms* row_terms;  // [pairs][term_rows], if keys are to receive, or null
  int term_rows;
};

inline constexpr int kInspectors = 2;  // warps
inline constexpr int kWorks = 3;       // at once: being made, copied and computed
// Tiles of a Work that are left to copy when the next one is drawn: enough to make it meanwhile.
// One drawn earlier would wait, while others are free, for a Work of any length.
inline constexpr int kLead = 4;

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
  BandMask band;
  KeyRange tiles;  // visited, from the last to the first
  KeyRange plain;  // of which these have no hidden pair over values that could be anything
  // By inspecting warp: values that are not finite were taken out.
  bool tainted[kInspectors];
  // Of row0: among the rows of lse, and among those of RowTold.
  std::int64_t first_row, first_told;
  Part parts[12];  // of the computing warps

  __device__ bool must_inspect(int tile) const { return tile < plain.begin || tile >= plain.end; }
  __device__ bool is_tainted() const {
    bool any = false;
    for (const bool flag : tainted) any |= flag;
    return any;
  }
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
  alignas(S::SaidInTiles ? 1024 : 8) unsigned char said[S::SaidInTiles ? S::Stages : 1]
                                                       [S::SaidInTiles ? S::SaidBytes : 8];
  Ring<S::QStages> q_ring;
  Ring<S::Stages> k_ring, v_ring;
  Barrier requested[S::Stages], inspected[S::Stages];  // of values, where a look is needed
  Ring<kWorks> work_ring;
  Barrier due[kWorks];  // the Work after this one
  Work work[kWorks];
};

// ---- Work ------------------------------------------------------------------------------------

// The first row of a block. Where rows do not fill all blocks, it is the first that has fewer, by
// whole warpgroups: under a diagonal it is the one that sees least.
__host__ __device__ inline int first_row_of(int block, int block_rows, int rows) {
  const int all = (rows + block_rows - 1) / block_rows * block_rows;
  return max(block * block_rows - (all - rows) / 64 * 64, 0);
}

// Long rows first (the last rows of a causal mask see most), and few heads at a time, so that
// their keys and values stay in L2.
template <class S>
__device__ void make_work(const Params& p, int ticket, Work& work) {
  const int section = ticket / (p.pairs_at_once * p.row_blocks);
  const int in_section = ticket - section * p.pairs_at_once * p.row_blocks;
  const int pairs = min(p.pairs_at_once, p.pairs - section * p.pairs_at_once);
  const int block = p.row_blocks - 1 - in_section / pairs;
  const int pair = section * p.pairs_at_once + in_section % pairs;
  const int index = p.by_head ? pair % (p.pairs / p.heads) : pair / p.heads;

  Sm90Sequence sequence = p.all_alike;
  if (p.sequences)
    sequence = p.sequences[index];
  else
    sequence.q_batch = sequence.k_batch = index;

  work.index = index;
  work.head = p.by_head ? pair / (p.pairs / p.heads) : pair % p.heads;
  work.row0 = first_row_of(block, S::Rows, sequence.q_rows);
  work.q_batch = sequence.q_batch;
  work.k_batch = sequence.k_batch;
  work.q_start = sequence.q_start;
  work.k_start = sequence.k_start;
  const int end = min(first_row_of(block + 1, S::Rows, sequence.q_rows), sequence.q_rows);
  work.rows = max(end - work.row0, 0);
  work.seeing = min(max(sequence.q_seeing - work.row0, 0), work.rows);
  work.band = {p.left, p.right, sequence.offset, sequence.k_visible};
  work.tiles = work.plain = {0, 0};
  for (bool& flag : work.tainted) flag = false;
  work.first_row =
      (std::int64_t(work.q_batch) * p.heads + work.head) * p.q_rows + work.q_start + work.row0;
  work.first_told = (std::int64_t(pair) * p.row_blocks + block) * S::Rows;
  if (work.seeing > 0) {
    const int last = work.row0 + work.seeing - 1;
    const KeyRange some = work.band.of_some(work.row0, last);
    if (some.begin < some.end)
      work.tiles = {some.begin / S::Keys, (some.end + S::Keys - 1) / S::Keys};
    // Beyond the tensor's last row the copy gives zeros.
    if (!S::SaidInTiles)
      work.plain = tiles_within<S>(work.band.of_all(work.row0, last), p.k_rows - sequence.k_start);
  }
}

// Of the tiles that a Work visits, those of which some of its rows row .. row + 63 see a key; one
// at least.
template <class S>
__device__ KeyRange tiles_of_rows(const Work& work, int row) {
  const int last = min(row + 64, work.seeing) - 1;
  if (row > last) return {work.tiles.begin, work.tiles.begin + 1};
  const KeyRange some = work.band.of_some(work.row0 + row, work.row0 + last);
  const int begin = min(max(some.begin / S::Keys, work.tiles.begin), work.tiles.end - 1);
  const int end = min((some.end + S::Keys - 1) / S::Keys, work.tiles.end);
  return {begin, max(end, begin + 1)};
}

template <class S>
__device__ Part part_of(const Work& work, int warp) {
  const int row = 16 * warp, last = row + 15;
  // Rows that see nothing, or do not exist, need a mask only where somebody counts.
  const bool all_see = !S::Counts || last < work.seeing;
  const KeyRange keys =
      all_see ? work.band.of_all(work.row0 + row, work.row0 + last) : KeyRange{0, 0};
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

}  // namespace qkv::cuda::forward_sm90
