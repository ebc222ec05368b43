// The query rows of all heads that share a key head are the rows of one product (at most 16 at a
// time), so each key and value is read once for all of them. A block is four warps that know
// nothing of each other until the end: each has its own ring of stages, filled by the copy engine,
// and takes every fourth tile of the block's keys.
#include "cuda/attention_decode_sm90.h"

#include <algorithm>

#include "cuda/tile/barrier.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/launch.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda {
namespace {

constexpr char kName[] = "attention_decode";

constexpr int kWarps = 4;
constexpr int kRows = 16;
constexpr int kMostParts = 256;

template <class Element, int HeadSize, int KeysPerTile, int StageCount>
struct Shape {
  using T = Element;
  static constexpr int D = HeadSize;  // padded to a multiple of 64
  static constexpr int Keys = KeysPerTile;
  static constexpr int Stages = StageCount;
};

struct Params {
  CUtensorMap k, v;
  const void* q;
  const void* values;  // V again, for the rare path that reads it by hand
  void* out;
  float* lse;
  const float* sinks;  // [heads], or null
  // Of every block, when the keys are split: its rows' out before the division [16][D], and their
  // maximum and sum [16].
  float* part_out;
  float2* part_rows;
  std::uint32_t* tickets;
  Sm90Strides q_strides, v_strides, out_strides;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  const std::int32_t* key_lengths;
  const std::int32_t* pages;  // null: K and V lie in one piece
  int page_rows, pages_each;
  int heads, key_heads, group, head_size, q_rows, k_rows;
  int left, right;
  int row_blocks, parts;
  float scale, inner_scale;  // as in attention_forward_sm90_work.cuh; inner_scale 0: no softcap
};

template <class S>
struct alignas(1024) Shared {
  struct Stage {
    typename S::T k[S::Keys * S::D], v[S::Keys * S::D];
  };
  union {
    Stage stages[kWarps][S::Stages];
    float out[kWarps][kRows][S::D];        // once all tiles are done
    float2 block_part[kRows][kMostParts];  // weight and sum, once all blocks are done
  };
  float2 row_part[kRows][kWarps];  // maximum and sum
  Barrier full[kWarps][S::Stages];
  bool last;
};

// The rows of one block, all of one sequence and key head.
struct Unit {
  Sm90Sequence sequence;
  BandMask band;
  int number;                // of the sequence
  int key_head, row0, rows;  // packed row r is query r / group of head key_head * group + r % group

  __device__ Unit(const Params& p, int index) {
    const int block = index % p.row_blocks;
    key_head = index / p.row_blocks % p.key_heads;
    const int at = number = index / p.row_blocks / p.key_heads;
    sequence = p.all_alike;
    if (p.sequences)
      sequence = p.sequences[at];
    else
      sequence.q_batch = sequence.k_batch = at;
    if (p.key_lengths) {
      sequence.k_visible = min(max(p.key_lengths[at], 0), sequence.k_rows);
      sequence.offset = sequence.k_visible - sequence.q_seeing;
    }
    band = {p.left, p.right, sequence.offset, sequence.k_visible};
    row0 = block * kRows;
    rows = min(max(sequence.q_rows * p.group - row0, 0), kRows);
  }
  // Where a key lies: the batch of K and V, and its row there.
  struct Place {
    int batch, row;
  };
  __device__ Place place(const Params& p, int key) const {
    if (!p.pages) return {sequence.k_batch, sequence.k_start + key};
    return {p.pages[number * p.pages_each + key / p.page_rows], key % p.page_rows};
  }
  __device__ int query(const Params& p, int row) const { return (row0 + row) / p.group; }
  __device__ int head(const Params& p, int row) const {
    return key_head * p.group + (row0 + row) % p.group;
  }
  __device__ KeyRange seen(const Params& p, int row) const {
    const int i = query(p, row);
    return row < rows && i < sequence.q_seeing ? band.of(i) : KeyRange{0, 0};
  }
};

template <class S>
__device__ void store(const Params& p, const Unit& unit, int row, int column, float value) {
  using T = typename S::T;
  if (column >= p.head_size) return;
  T* const out = static_cast<T*>(p.out) + unit.sequence.q_batch * p.out_strides.batch +
                 unit.head(p, row) * p.out_strides.head +
                 std::int64_t(unit.sequence.q_start + unit.query(p, row)) * p.out_strides.row;
  out[column] = T(value);
}
__device__ inline void store_lse(const Params& p, const Unit& unit, int row, float maximum,
                                 float sum) {
  if (!p.lse) return;
  float lse = sum == 0 ? -kInfinity : (maximum * p.scale + log2f(sum)) * kLn2;
  if (p.sinks) {
    const KeyRange seen = unit.seen(p, row);
    const float sink = p.sinks[unit.head(p, row)];
    float share = 1;
    if (sum != 0)
      lse = with_sink(sink, lse, share);
    else if (seen.begin < seen.end)
      lse = sink;
  }
  p.lse[(std::int64_t(unit.sequence.q_batch) * p.heads + unit.head(p, row)) * p.q_rows +
        unit.sequence.q_start + unit.query(p, row)] = lse;
}
// The sum of a row's weights relative to its largest score, with the sink's.
__device__ inline float whole_sum(const Params& p, const Unit& unit, int row, float maximum,
                                  float sum) {
  if (!p.sinks || sum == 0) return sum;
  return sum + exp2f(p.sinks[unit.head(p, row)] * kLog2e - maximum * p.scale);
}

// What part i of a row counts when parts are put together. A part that saw nothing has sum 0, and
// no maximum to subtract.
__device__ inline float part_weight(float maximum, float sum, float largest, float scale) {
  return sum == 0 ? 0.f : exp2_fast((maximum - largest) * scale);
}

// Takes NaN and Inf out of a warp's tile; true if there were any that a row may see.
template <class S>
__device__ bool clean(typename S::T* tile, int seen_keys) {
  uint4* const vectors = reinterpret_cast<uint4*>(tile);
  bool taint = false;
  for (int i = threadIdx.x % 32; i < S::Keys * S::D / 8; i += 32) {
    const uint4 found = vectors[i];
    if (all_finite<typename S::T>(found)) continue;
    vectors[i] = only_finite<typename S::T>(found);
    taint |= i / 8 % S::Keys < seen_keys;
  }
  fence_async_proxy();  // the copy engine will write here again
  return __any_sync(0xffffffff, taint);
}

template <class S>
__global__ void __launch_bounds__(32 * kWarps)
    attention_decode_kernel(const __grid_constant__ Params p) {
  using T = typename S::T;
  extern __shared__ unsigned char memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
  const Unit unit(p, index);
  if (unit.rows == 0) return;

  // This block's keys: whole tiles of what some row sees.
  const int last_seeing = min(unit.query(p, unit.rows - 1), unit.sequence.q_seeing - 1);
  KeyRange some{0, 0};
  if (last_seeing >= unit.query(p, 0)) some = unit.band.of_some(unit.query(p, 0), last_seeing);
  if (p.pages) some.begin -= some.begin % S::Keys;  // no tile lies in two pages
  const int tiles = max(some.end - some.begin + S::Keys - 1, 0) / S::Keys;
  const int per_part = (tiles + p.parts - 1) / p.parts;
  const int tile_begin = part * per_part, tile_end = min(tile_begin + per_part, tiles);

  const auto fetch = [&](int tile, int stage) {
    Barrier& full = shared.full[warp][stage];
    typename Shared<S>::Stage& to = shared.stages[warp][stage];
    const Unit::Place from = unit.place(p, some.begin + tile * S::Keys);
    full.expect(2 * S::Keys * S::D * int(sizeof(T)));
#pragma unroll
    for (int slab = 0; slab < S::D / kSlab; ++slab) {
      load_slab(to.k + slab * S::Keys * kSlab, p.k, full, slab * kSlab, from.row, unit.key_head,
                from.batch, Keep::briefly);
      load_slab(to.v + slab * S::Keys * kSlab, p.v, full, slab * kSlab, from.row, unit.key_head,
                from.batch, Keep::briefly);
    }
  };
  if (lane == 0) {
    prefetch_map(p.k);
    prefetch_map(p.v);
    for (Barrier& barrier : shared.full[warp]) barrier.init(1);
    fence_barrier_init();
    for (int i = 0; i < S::Stages; ++i)
      if (tile_begin + warp + i * kWarps < tile_end) fetch(tile_begin + warp + i * kWarps, i);
  }

  // Q as A operands: lane l holds columns 2 (l % 4) .. of rows l / 4 and l / 4 + 8.
  const int row = lane / 4;
  std::uint32_t q[S::D / 16][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    const T* const from = static_cast<const T*>(p.q) + unit.sequence.q_batch * p.q_strides.batch +
                          unit.head(p, at) * p.q_strides.head +
                          std::int64_t(unit.sequence.q_start + unit.query(p, at)) * p.q_strides.row;
#pragma unroll
    for (int i = 0; i < S::D / 8; ++i) {
      const int column = 8 * i + 2 * (lane % 4);
      q[i / 2][i % 2 * 2 + r] = at < unit.rows && column < p.head_size
                                    ? *reinterpret_cast<const std::uint32_t*>(from + column)
                                    : 0;
    }
  }
  const KeyRange seen[2] = {unit.seen(p, row), unit.seen(p, row + 8)};
  const KeyRange all = unit.band.of_all(unit.query(p, 0), unit.query(p, unit.rows - 1));

  OnlineSoftmax softmax;
  NoWatch watch;
  float o[S::D / 2] = {};
  Turn<S::Stages> turn;
  __syncwarp();
  for (int tile = tile_begin + warp; tile < tile_end; tile += kWarps, turn.next()) {
    typename Shared<S>::Stage& stage = shared.stages[warp][turn.stage];
    const int key0 = some.begin + tile * S::Keys;
    shared.full[warp][turn.stage].wait(turn.phase);

    float s[S::Keys / 2] = {};
    const std::uint32_t keys = shared_address(stage.k), values = shared_address(stage.v);
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) {
#pragma unroll
      for (int n = 0; n < S::Keys; n += 16) {
        std::uint32_t b[4];
        load_matrices(b,
                      keys + swizzled(S::Keys, n + lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
        mma<T>(s + n / 2, q[i], b[0], b[1]);
        mma<T>(s + n / 2 + 4, q[i], b[2], b[3]);
      }
    }
    if (p.inner_scale != 0) {
#pragma unroll
      for (float& x : s) x = tanh_fast(x * p.inner_scale);
    }
    bool tainted = false;
    if (key0 < all.begin || key0 + S::Keys > all.end) {
      hide(s, seen, key0, -kInfinity);
      tainted = clean<S>(stage.v, some.end - key0);
    }
    float factor[2];
    if (softmax.step(s, p.scale, factor, watch)) {
#pragma unroll
      for (int i = 0; i < S::D / 2; ++i) o[i] *= factor[i / 2 % 2];
    }
    std::uint32_t weights[S::Keys / 16][4];
    pack_operands<T>(weights, s);
#pragma unroll
    for (int i = 0; i < S::Keys / 16; ++i) {
#pragma unroll
      for (int n = 0; n < S::D; n += 16) {
        std::uint32_t b[4];
        load_matrices_transposed(b,
                                 values + swizzled(S::Keys, 16 * i + lane % 16, n / 8 + lane / 16));
        mma<T>(o + n / 2, weights[i], b[0], b[1]);
        mma<T>(o + n / 2 + 4, weights[i], b[2], b[3]);
      }
    }
    if (tainted) {  // slow, and never on the path of ordinary values
      for (int key = key0; key < min(key0 + S::Keys, some.end); ++key) {
        const Unit::Place place = unit.place(p, key);
        const T* const from = static_cast<const T*>(p.values) + place.batch * p.v_strides.batch +
                              unit.key_head * p.v_strides.head + place.row * p.v_strides.row;
#pragma unroll
        for (int i = 0; i < S::D / 2; ++i) {
          const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
          const KeyRange range = seen[i / 2 % 2];
          if (column >= p.head_size || key < range.begin || key >= range.end) continue;
          const float value = float(from[column]);
          if (!isfinite(value)) o[i] += value;
        }
      }
    }
    __syncwarp();
    const int next = tile + S::Stages * kWarps;
    if (lane == 0 && next < tile_end) fetch(next, turn.stage);
  }

  // The four warps' parts together.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool sees = unit.query(p, row + 8 * r) < unit.sequence.q_seeing;
    softmax.sum[r] = quad_sum(softmax.sum[r]);
    if (lane % 4 == 0)
      shared.row_part[row + 8 * r][warp] = {softmax.maximum[r], sees ? softmax.sum[r] : 0};
  }
#pragma unroll
  for (int i = 0; i < S::D / 2; i += 2)
    *reinterpret_cast<float2*>(&shared.out[warp][row + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2]) = {
        o[i], o[i + 1]};
  __syncthreads();

  const bool whole = p.parts == 1;
  for (int i = threadIdx.x; i < unit.rows * S::D; i += 32 * kWarps) {
    const int at = i / S::D, column = i % S::D;
    float largest = -kInfinity, sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.row_part[at][w].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 found = shared.row_part[at][w];
      if (found.y == 0) continue;
      const float weight = part_weight(found.x, found.y, largest, p.scale);
      sum += weight * found.y;
      value += weight * shared.out[w][at][column];
    }
    if (whole) {
      store<S>(p, unit, at, column, sum == 0 ? 0 : value / whole_sum(p, unit, at, largest, sum));
      if (column == 0) store_lse(p, unit, at, largest, sum);
    } else {
      const std::int64_t record = (std::int64_t(blockIdx.x) * kRows + at);
      p.part_out[record * S::D + column] = value;
      if (column == 0) p.part_rows[record] = {largest, sum};
    }
  }
  if (whole) return;

  // The blocks' parts together, by whoever comes last.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&p.tickets[index], 1u) == unsigned(p.parts) - 1;
    if (shared.last) p.tickets[index] = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  const std::int64_t record0 = std::int64_t(index) * p.parts * kRows;
  for (int at = warp; at < unit.rows; at += kWarps) {
    float largest = -kInfinity, sum = 0;
    for (int n = lane; n < p.parts; n += 32) {
      const float2 found = __ldcg(&p.part_rows[record0 + n * kRows + at]);
      shared.block_part[at][n] = found;
      largest = fmaxf(largest, found.x);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    for (int n = lane; n < p.parts; n += 32) {
      const float2 found = shared.block_part[at][n];
      const float weight = part_weight(found.x, found.y, largest, p.scale);
      sum += found.y == 0 ? 0 : weight * found.y;
      shared.block_part[at][n].x = weight;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float whole = whole_sum(p, unit, at, largest, sum);
    for (int n = lane; n < p.parts; n += 32)
      if (sum != 0) shared.block_part[at][n].x /= whole;
    if (lane == 0) store_lse(p, unit, at, largest, sum);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < unit.rows * S::D / 4; i += 32 * kWarps) {
    const int at = i / (S::D / 4), column = i % (S::D / 4) * 4;
    const float* const from = p.part_out + (record0 + at) * S::D + column;
    float4 value{};
#pragma unroll 8
    for (int n = 0; n < p.parts; ++n) {
      const float4 found = __ldcg(reinterpret_cast<const float4*>(from + n * kRows * S::D));
      const float weight = shared.block_part[at][n].x;
      if (shared.block_part[at][n].y == 0) continue;
      value.x += weight * found.x;
      value.y += weight * found.y;
      value.z += weight * found.z;
      value.w += weight * found.w;
    }
    store<S>(p, unit, at, column, value.x);
    store<S>(p, unit, at, column + 1, value.y);
    store<S>(p, unit, at, column + 2, value.z);
    store<S>(p, unit, at, column + 3, value.w);
  }
}

// ---- Host --------------------------------------------------------------------------------------

int padded(std::int64_t head_size) { return head_size <= 64 ? 64 : head_size <= 128 ? 128 : 256; }

template <class S>
void launch(const Sm90Forward& call, const DecodePlan& plan, void* workspace, cudaStream_t stream) {
  Params p{};
  const auto keys = [&](const void* data, const Sm90Strides& strides) {
    const std::int64_t rows = call.pages ? call.page_rows : call.k_rows;
    return make_tensor_map({data, call.k_batches, call.key_heads, rows, call.head_size,
                            strides.batch, strides.head, strides.row},
                           call.dtype, S::Keys);
  };
  p.k = keys(call.k, call.k_strides);
  p.v = keys(call.v, call.v_strides);
  p.q = call.q;
  p.values = call.v;
  p.out = call.out;
  p.lse = call.lse;
  p.sinks = call.sinks;
  p.tickets = call.ticket;
  p.q_strides = call.q_strides;
  p.v_strides = call.v_strides;
  p.out_strides = call.out_strides;
  p.sequences = call.sequences;
  p.all_alike = call.all_alike;
  p.key_lengths = call.key_lengths;
  p.pages = call.pages;
  p.page_rows = int(call.page_rows);
  p.pages_each = int(call.pages_each);
  p.heads = int(call.heads);
  p.key_heads = int(call.key_heads);
  p.group = int(call.heads / call.key_heads);
  p.head_size = int(call.head_size);
  p.q_rows = int(call.q_rows);
  p.k_rows = int(call.k_rows);
  p.left = window_side(call.left);
  p.right = window_side(call.right);
  p.row_blocks = plan.row_blocks;
  p.parts = plan.parts;
  p.scale = (call.softcap > 0 ? call.softcap : call.scale) * kLog2e;
  p.inner_scale = call.softcap > 0 ? call.scale / call.softcap : 0;

  const std::int64_t blocks = call.sequence_count * call.key_heads * plan.row_blocks * plan.parts;
  if (blocks == 0) return;
  p.part_out = static_cast<float*>(workspace);
  p.part_rows = reinterpret_cast<float2*>(p.part_out + blocks * kRows * S::D);
  constexpr int Bytes = sizeof(Shared<S>);
  static_assert(Bytes <= 227 * 1024 && kDecodeTile % S::Keys == 0);
  const auto kernel = attention_decode_kernel<S>;
  allow_shared_bytes(kernel, Bytes, kName);
  kernel<<<unsigned(blocks), 32 * kWarps, Bytes, stream>>>(p);
  check_status(cudaGetLastError(), kName);
}

template <class T>
void launch_for(const Sm90Forward& call, const DecodePlan& plan, void* workspace,
                cudaStream_t stream) {
  switch (padded(call.head_size)) {
    case 64: return launch<Shape<T, 64, 32, 3>>(call, plan, workspace, stream);
    case 128:
      if (plan.alone) return launch<Shape<T, 128, 32, 3>>(call, plan, workspace, stream);
      return launch<Shape<T, 128, 16, 3>>(call, plan, workspace, stream);
    default: return launch<Shape<T, 256, 16, 3>>(call, plan, workspace, stream);
  }
}

// What `rounds` of blocks take, in keys that a multiprocessor reads: two blocks that share it read
// half as fast, but while one begins the other goes on. The rest is what was measured on an H200
// (D 128): beginning, and putting parts together.
std::int64_t cost_of(bool alone, std::int64_t rounds, std::int64_t keys, std::int64_t parts) {
  const std::int64_t merging = parts == 1 ? 0 : 200 + 12 * parts;
  return rounds * (alone ? keys + 212 : 2 * keys + 96) + merging;
}

}  // namespace

DecodePlan plan_decode(const Sm90Forward& call) {
  DecodePlan plan;
  const std::int64_t rows = call.longest * (call.heads / call.key_heads);
  plan.row_blocks = int((rows + kRows - 1) / kRows);
  const std::int64_t units = call.sequence_count * call.key_heads * plan.row_blocks;
  if (units == 0) return plan;
  plan.parts = 1;
  if (units > kSm90Tickets) return plan;
  const int D = padded(call.head_size);
  const std::int64_t tile = 64, tiles = (call.k_rows + tile - 1) / tile;
  std::int64_t best = INT64_MAX;
  for (const bool alone : {true, false}) {
    if (alone ? D == 64 : D == 256) continue;
    const std::int64_t slots = multiprocessors() * (alone ? 1 : 2);
    const std::int64_t most = std::min<std::int64_t>({kMostParts, tiles, 4 * slots / units});
    for (std::int64_t parts = 1; parts == 1 || parts <= most; ++parts) {
      const std::int64_t rounds = (units * parts + slots - 1) / slots;
      const std::int64_t cost = cost_of(alone, rounds, (tiles + parts - 1) / parts * tile, parts);
      if (cost >= best) continue;
      best = cost;
      plan.parts = int(parts);
      plan.alone = alone;
    }
  }
  if (plan.parts > 1)
    plan.workspace_bytes = units * plan.parts * kRows * (D + 2) * std::int64_t(sizeof(float));
  return plan;
}

bool decode_is_better(const Sm90Forward& call) {
  return !call.statistics && call.pairs.said == Said::nothing &&
         call.longest * (call.heads / call.key_heads) <= 64;
}

void attention_decode(const Sm90Forward& call, const DecodePlan& plan, void* workspace,
                      cudaStream_t stream) {
  if (call.dtype == DType::bf16)
    launch_for<__nv_bfloat16>(call, plan, workspace, stream);
  else
    launch_for<__half>(call, plan, workspace, stream);
}

}  // namespace qkv::cuda
