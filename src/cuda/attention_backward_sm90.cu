// The backward pass for Hopper GPUs as it is called: its workspace, which tiles it takes, and the
// small kernels before and after it. attention_backward_sm90.cuh is the kernel.
#include "cuda/attention_backward_sm90.h"

#include <algorithm>

#include "cuda/attention_backward_sm90.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/launch.cuh"

namespace qkv::cuda {
namespace {

using namespace backward_sm90;

constexpr char kName[] = "attention_backward";

// ---- Before and after -----------------------------------------------------------------------

struct RowParams {
  const void *q, *dout, *out;
  const float *lse, *dlse;
  void* dq;
  Sm90Strides q_strides, dout_strides, out_strides, dq_strides;
  const Sm90Sequence* sequences;
  Sm90Sequence all_alike;
  RowTerms* terms;
  const float *row_top, *row_share;  // under a bias, like lse: weights are e^(score - top) share
  float* tops;
  const float* sums;  // of dQ
  std::uint32_t* tainted;
  int heads, head_size, q_rows, padded_rows;
  int left, right;
  bool masked;     // some pairs are hidden, and must not feel what is not finite
  float scale;     // of dQ
  float per_kept;  // of r: what dropout multiplies by is left to the end

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
// their weights 0. Under a mask, says where queries or gradients are not finite. A row that sees
// keys tells of its query: none of its scores would be finite, nor its log-sum-exp. The first heads
// come last: they are in L2 when the gradients begin with them.
template <class T>
__global__ void row_terms_kernel(const RowParams p) {
  const int pair = gridDim.y - 1 - blockIdx.y, index = pair / p.heads, head = pair % p.heads;
  const int row = blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8, part = threadIdx.x % 8;
  const Sm90Sequence sequence = p.sequence(index);
  const std::int64_t at = sequence.q_start + row;
  const bool present = row < min(sequence.q_rows, sequence.q_seeing);
  const std::int64_t i = (std::int64_t(sequence.q_batch) * p.heads + head) * p.q_rows + at;
  const float lse = present ? p.lse[i] : -kInfinity;
  const auto row_of = [&](const void* data, const Sm90Strides& strides) {
    return static_cast<const T*>(data) + sequence.q_batch * strides.batch + head * strides.head +
           at * strides.row;
  };
  const auto words = [](const T* x) { return *reinterpret_cast<const uint4*>(x); };
  bool finite = true;
  float sum = 0;
  if (present) {
    const T* const dout = row_of(p.dout, p.dout_strides);
    const T* const out = row_of(p.out, p.out_strides);
    for (int column = 8 * part; column < p.head_size; column += 64) {
      const uint4 a = words(dout + column), b = words(out + column);
      const T* const x = reinterpret_cast<const T*>(&a);
      const T* const y = reinterpret_cast<const T*>(&b);
      finite &= all_finite<T>(a);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += float(x[k]) * float(y[k]);
    }
    finite &= !isnan(lse);
  }
  // Rows that see nothing, and those behind the sequence that are copied with its last.
  const int copied = (sequence.q_rows + kRowPadding - 1) / kRowPadding * kRowPadding;
  if (p.masked && lse == -kInfinity && row < copied && at < p.q_rows) {
    for (int column = 8 * part; column < p.head_size; column += 64)
      finite &= all_finite<T>(words(row_of(p.q, p.q_strides) + column)) &&
                all_finite<T>(words(row_of(p.dout, p.dout_strides) + column));
  }
  if (p.masked && !finite) *p.tainted = 1;
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (part != 0 || row >= p.padded_rows) return;
  RowTerms terms{kInfinity, 0};
  if (lse != -kInfinity) terms = {lse * kLog2e, (sum - (p.dlse ? p.dlse[i] : 0.f)) * p.per_kept};
  if (p.tops) {
    const bool sees = lse != -kInfinity;
    const float top = sees ? p.row_top[i] : 0.f;
    if (sees) terms.lse = -log2f(p.row_share[i]);
    if (!isfinite(top)) *p.tainted = 1;
    p.tops[std::int64_t(pair) * p.padded_rows + row] = top;
    p.terms[std::int64_t(pair) * p.padded_rows + row] = terms;
    return;
  }
  // Beyond this, a weight made from it is more than a few per cent off.
  constexpr float kExtremeLse = 1 << 20;
  if (fabsf(lse) > kExtremeLse && lse != -kInfinity) *p.tainted = 1;
  p.terms[std::int64_t(pair) * p.padded_rows + row] = terms;
}

// dQ from the order of its sums to rows, scaled and rounded. Where no row of a step sees a key,
// nothing has been written. The last heads come first, which are still in L2.
template <class S>
__global__ void finish_dq_kernel(const RowParams p) {
  using T = typename S::T;
  const int pair = gridDim.y - 1 - blockIdx.y, index = pair / p.heads, head = pair % p.heads;
  const int step = blockIdx.x;
  const Sm90Sequence sequence = p.sequence(index);
  if (step * S::Rows >= sequence.q_rows) return;
  const float* const sums = p.sums + (std::int64_t(pair) * p.padded_rows + step * S::Rows) * S::D;
  const int consumer = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const int first = step * S::Rows, seeing = min(sequence.q_rows, sequence.q_seeing);
  const BandMask band{p.left, p.right, sequence.offset, sequence.k_visible};
  const KeyRange seen = band.of_some(first, min(first + S::Rows, seeing) - 1);
  const bool is_written = first < seeing && seen.begin < seen.end;
  float dq[S::ColumnsOfDq / 2];
#pragma unroll
  for (int i = 0; i < S::ColumnsOfDq / 8; ++i) {
    const float4 found =
        is_written ? *reinterpret_cast<const float4*>(sums + dq_index<S>(consumer, i, thread))
                   : float4{0, 0, 0, 0};
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

// Heads of 64 are padded to 128 where there is no room for larger tiles.
bool pads_heads(const Sm90Forward& f) { return f.pairs.said == Said::bias; }

// The workspace: sums of dQ, then turns and the tainted word (which start as 0, and sums too where
// shares are added in any order), then terms, and tops under a bias.
struct Workspace {
  std::int64_t pairs, padded_rows, turns;
  std::int64_t dq_bytes, zero_bytes, tops_at, bytes;

  explicit Workspace(const Sm90Backward& call) {
    const Sm90Forward& f = call.forward;
    const std::int64_t D = f.head_size <= 64 && !pads_heads(f) ? 64
                           : f.head_size <= 128                ? 128
                           : f.head_size <= 192                ? 192
                                                               : 256;
    pairs = f.sequence_count * f.heads;
    padded_rows = (f.longest + kRowPadding - 1) / kRowPadding * kRowPadding;
    turns = pairs * (padded_rows / 64);
    dq_bytes = pairs * padded_rows * D * 4;
    zero_bytes = (dq_bytes + turns * 4 + 4 + 15) / 16 * 16;
    tops_at = zero_bytes + pairs * padded_rows * std::int64_t(sizeof(RowTerms));
    bytes = tops_at + (f.pairs.said == Said::bias ? pairs * padded_rows * 4 : 0);
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
  const std::int64_t first_zero = call.deterministic ? space.dq_bytes : 0;
  check_status(cudaMemsetAsync(base + first_zero, 0, space.zero_bytes - first_zero, stream), kName);

  RowParams rows{};
  rows.q = f.q;
  rows.dout = call.dout;
  rows.out = f.out;
  rows.lse = f.lse;
  rows.dlse = call.dlse;
  rows.dq = call.dq;
  rows.q_strides = f.q_strides;
  rows.dout_strides = call.dout_strides;
  rows.out_strides = f.out_strides;
  rows.dq_strides = call.dq_strides;
  rows.sequences = f.sequences;
  rows.all_alike = f.all_alike;
  rows.terms = terms;
  rows.sums = reinterpret_cast<const float*>(base);
  rows.tainted = tainted;
  if (S::Biased) {
    rows.row_top = call.row_top;
    rows.row_share = call.row_share;
    rows.tops = reinterpret_cast<float*>(base + space.tops_at);
  }
  rows.heads = int(f.heads);
  rows.head_size = int(f.head_size);
  rows.q_rows = int(f.q_rows);
  rows.padded_rows = int(space.padded_rows);
  rows.left = window_side(f.left);
  rows.right = window_side(f.right);
  rows.masked = f.left >= 0 || f.right >= 0 || f.sequences || f.all_alike.k_visible < f.k_rows ||
                f.all_alike.q_seeing < f.q_rows || S::SaidInTiles;
  rows.scale = f.scale * f.pairs.dropout.kept;
  rows.per_kept = 1 / f.pairs.dropout.kept;
  if (space.pairs * space.padded_rows > 0)
    row_terms_kernel<T>
        <<<dim3(unsigned(space.padded_rows / 32), unsigned(space.pairs)), 256, 0, stream>>>(rows);

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
  p.tops = rows.tops;
  p.dq = reinterpret_cast<float*>(base);
  p.turns = turns;
  p.ticket = f.ticket;
  p.tainted = rows.masked ? tainted : nullptr;
  p.sequences = f.sequences;
  p.all_alike = f.all_alike;
  p.heads = int(f.heads);
  p.key_heads = int(f.key_heads);
  p.group = int(f.heads / f.key_heads);
  p.head_size = int(f.head_size);
  p.padded_rows = int(space.padded_rows);
  p.left = rows.left;
  p.right = rows.right;
  p.key_blocks = int((f.longest_keys + S::Keys - 1) / S::Keys);
  p.works = int(f.sequence_count * f.key_heads * p.key_blocks);
  p.deterministic = call.deterministic;
  // Under a diagonal, block n reaches a step of rows one step later than block n + 1 does: taken
  // from the last to the first, shares of dQ come in the order in which they are ready. The longest
  // blocks are then last; without that need they are first.
  p.backward_in_keys = call.deterministic && f.right >= 0;
  // A block of keys adds to a step's dQ after the one before it, so each has to begin a little
  // later than that. Those of one head would begin together each time that their multiprocessors
  // come free together; drawn from as many heads as are under way at once, they begin in the order
  // in which those before them ended, as far apart as they have come by then. That is too little
  // where a share takes longer than the step that follows it, under a diagonal and in wide shapes,
  // whose shares come in pieces: there twice as many heads are in turns, where L2 has room for
  // their rows of Q, dO and dQ.
  const int under_way = std::max(1, multiprocessors() / std::max(1, p.key_blocks));
  const std::int64_t head_bytes = 8 * f.longest * p.group * S::D;
  const bool is_late = S::Wide ? p.deterministic : p.backward_in_keys && under_way <= 2;
  const bool twice = is_late && 2 * under_way * head_bytes <= std::int64_t(32) << 20;
  p.in_turns = twice ? 2 * under_way : under_way;
  p.scale = f.scale;
  p.softcap = f.softcap;
  p.kept = f.pairs.dropout.kept;
  p.of_pairs = f.pairs;
  p.far_sums = call.far_sums;
  if constexpr (S::SaidInTiles)
    p.said = make_tensor_map({f.pairs.data, f.pairs.batches, f.pairs.heads, f.q_rows, f.k_rows,
                              f.pairs.strides.batch, f.pairs.strides.head, f.pairs.strides.row},
                             S::Biased ? f.dtype : DType::u8, S::Rows);
  if (p.works > 0) {
    constexpr int Bytes = sizeof(SharedOf<S>);
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

// Keys of a block of heads up to 128.
constexpr int kBlockOfKeys = 128;

template <class T, int DoutStages, Said Pairs, bool Capped>
const std::uint32_t* launch_sizes(const Sm90Backward& call, cudaStream_t stream) {
  if (call.forward.head_size <= 64)
    return launch<Shape<T, 64, 128, kBlockOfKeys, 2, DoutStages, Pairs, Capped>>(call, stream);
  return launch<Shape<T, 128, 64, kBlockOfKeys, 2, DoutStages, Pairs, Capped>>(call, stream);
}

template <class T>
const std::uint32_t* launch_for(const Sm90Backward& call, cudaStream_t stream) {
  const Sm90Forward& f = call.forward;
  if (f.head_size > 192) return launch<Shape<T, 256, 64, 64, 2, 1>>(call, stream);
  if (f.head_size > 128) return launch<Shape<T, 192, 64, 64, 2, 1>>(call, stream);
  if (f.softcap > 0) return launch_sizes<T, 2, Said::nothing, true>(call, stream);
  if (f.pairs.said == Said::distance)
    return launch_sizes<T, 2, Said::distance, false>(call, stream);
  // There is no room for a second step of dO beside a tile of the bias or mask.
  if (f.pairs.said == Said::bias)
    return launch<Shape<T, 128, 64, 128, 2, 1, Said::bias>>(call, stream);
  if (f.pairs.said == Said::mask) return launch_sizes<T, 1, Said::mask, false>(call, stream);
  if (f.pairs.said == Said::dropout) return launch_sizes<T, 2, Said::dropout, false>(call, stream);
  return launch_sizes<T, 2, Said::nothing, false>(call, stream);
}

}  // namespace

const char* why_not_sm90_backward(const Sm90Backward& call) {
  const Sm90Forward& f = call.forward;
  if (const char* why = why_not_sm90_forward(f)) return why;
  if (f.softcap > 0 && f.head_size > 128) return "softcap with a head size above 128";
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

int sm90_far_parts(const Sm90Backward& call) {
  return kComputingWarps * int((call.forward.longest_keys + kBlockOfKeys - 1) / kBlockOfKeys);
}

const std::uint32_t* attention_backward_sm90(const Sm90Backward& call, cudaStream_t stream) {
  if (call.forward.dtype == DType::bf16) return launch_for<__nv_bfloat16>(call, stream);
  return launch_for<__half>(call, stream);
}

}  // namespace qkv::cuda
