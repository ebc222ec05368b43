// What the backward pass by matrix instructions has to know of rows: how their weights are made
// again, and dlse - dout . out.
#include "cuda/attention_mma.cuh"
#include "cuda/norm.cuh"

namespace qkv::cuda {
namespace {

// Beyond this an f32 lse errs by more than a weight may: one that is rounded to 16 bits, and one
// that is not.
constexpr float kFarOfHalves = 1024, kFarOfFloats = 14;

// The largest score of a row and the sum of e^(score - largest), by a warp; for few rows.
template <class T>
__device__ float2 exact_row(const AttentionJob& job, const Sequence& s, int sequence, int head,
                            int i) {
  const T* const q = job.q.at<const T>(s.q_batch, head, s.q_start + i);
  const auto score = [&](int j) {
    const T* const k = job.k.at<const T>(s.k_batch, head / job.group, s.k_start + j);
    float dot = 0;
    for (int d = 0; d < job.head_size; ++d) dot += to_float(q[d]) * to_float(k[d]);
    return score_of(job, s, sequence, head, i, j, dot);
  };
  const float sink = job.sinks != nullptr ? job.sinks[head] : -INFINITY;
  float top = sink, sum = 0;
  const Range keys = keys_seen(job, s, i, i);
  const int begin = static_cast<int>(keys.begin) + static_cast<int>(threadIdx.x) % 32;
  for (int j = begin; j < keys.end; j += 32) {
    const Score pair = score(j);
    if (pair.visible) top = fmaxf(top, pair.s);
  }
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
  for (int j = begin; j < keys.end; j += 32) {
    const Score pair = score(j);
    if (pair.visible) sum += expf(pair.s - top);
  }
  return {top, warp_sum(sum) + (sink == -INFINITY ? 0.0f : expf(sink - top))};
}

// What a thread has of x . y, of two rows that lie in vectors of 16 bytes: every eighth vector.
constexpr int kLanesOfRow = 8;
template <class T>
__device__ float share_of_dot(const T* x, const T* y, int size, int part) {
  constexpr int kVector = Pack16<T>::kCount;
  float dot = 0;
  for (int d = kVector * part; d < size; d += kVector * kLanesOfRow) {
    if (d + kVector > size) {
      for (int rest = d; rest < size; ++rest) dot += to_float(x[rest]) * to_float(y[rest]);
      break;
    }
    const Pack16<T> a = *reinterpret_cast<const Pack16<T>*>(x + d);
    const Pack16<T> b = *reinterpret_cast<const Pack16<T>*>(y + d);
#pragma unroll
    for (int k = 0; k < kVector; ++k) dot += to_float(a.values[k]) * to_float(b.values[k]);
  }
  return dot;
}

// What p and ds are made of, by eight lanes for each row; rows that are found again, by a warp.
constexpr int kRowThreads = 256, kRowsOfBlock = kRowThreads / kLanesOfRow;
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    mma_rows_kernel(const __grid_constant__ AttentionJob job, MmaBackward x) {
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane % kLanesOfRow;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const Sequence s = job.sequences[sequence];
  const int i = static_cast<int>(blockIdx.x * kRowsOfBlock + threadIdx.x / kLanesOfRow);
  const bool present = i < s.q_rows;
  const std::int64_t at = present ? job.lse_row(s, head, i) : 0;
  const float lse = present ? x.tensors.lse[at] : -INFINITY;
  float dot = 0;
  if (present) {
    dot = share_of_dot(x.tensors.dout.at<const T>(s.q_batch, head, s.q_start + i),
                       x.tensors.out.at<const T>(s.q_batch, head, s.q_start + i), job.value_size,
                       part);
  }
#pragma unroll
  for (int step = kLanesOfRow / 2; step > 0; step /= 2)
    dot += __shfl_xor_sync(0xffffffff, dot, step);
  const bool sees = lse != -INFINITY, changes = kHalves<T> && changes_scores(job);
  float2 row{lse, 1};
  const unsigned far =
      __ballot_sync(0xffffffff, changes && sees && fabsf(lse) > kFarOfHalves && part == 0);
  for (unsigned left = far; left != 0; left &= left - 1) {
    const int first = __ffs(static_cast<int>(left)) - 1;
    const float2 exact = exact_row<T>(job, s, sequence, head, __shfl_sync(0xffffffff, i, first));
    if (lane == first) row = exact;
  }
  if (part != 0 || !present) return;
  x.shift[at] = !sees ? INFINITY : changes ? row.x : lse * kLog2e;  // INFINITY: all p are 0
  x.rows.top[at] = sees ? row.x : 0.0f;                             // the shift of exact floats
  x.rows.share[at] = sees ? 1 / row.y : 0.0f;
  x.rows.base[at] = (x.tensors.dlse != nullptr ? x.tensors.dlse[at] : 0.0f) - dot;
}

// Exact floats: largest score and sum of rows that are far, from products that have the same bits
// as those that weights are made of. A block has 64 rows, and nothing to do if none is far.
template <int kSize>
struct FarRows {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps, kKeys = 32;
  static constexpr int kBytes = (kRows + kKeys) * kSize * static_cast<int>(sizeof(float));
};

template <int kSize>
__global__ void __launch_bounds__(FarRows<kSize>::kThreads)
    mma_far_rows_kernel(const __grid_constant__ AttentionJob job, MmaBackward x) {
  using Plan = FarRows<kSize>;
  using Tile = WarpTile<float, kSize>;
  using Pairs = PairBlock<false, Plan::kKeys>;
  extern __shared__ __align__(128) char room[];
  const Tile q{reinterpret_cast<float*>(room)}, k{q.data + Plan::kRows * kSize};
  const LaneReader<float, kSize> lane;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const Sequence s = job.sequences[sequence];
  const int first = static_cast<int>(blockIdx.x) * Plan::kRows;
  const int last = min(first + Plan::kRows, s.q_seeing) - 1;
  if (first > last) return;
  const int mine = first + 16 * warp_number();
  bool far[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = mine + lane_row(r);
    const float lse = i <= last ? x.tensors.lse[job.lse_row(s, head, i)] : 0.0f;
    far[r] = lse != -INFINITY && !(fabsf(lse) <= kFarOfFloats);
  }
  if (__syncthreads_or(far[0] || far[1]) == 0) return;

  q.template load<Plan::kRows, Plan::kThreads>(
      job.q.at<const float>(s.q_batch, head, s.q_start + first), job.q.row, last + 1 - first,
      job.head_size);
  const BandMask band = band_of(job, s);
  const KeyRange keys = band.of_some(first, last);
  OnlineSoftmax softmax;
  NoWatch nobody;
  bool wild = false;  // queries, or keys so far, do not split well
#pragma unroll 1
  for (int key = keys.begin / kKeysAligned * kKeysAligned; key < keys.end; key += Plan::kKeys) {
    k.template load<Plan::kKeys, Plan::kThreads>(
        job.k.at<const float>(s.k_batch, head / job.group, s.k_start + key), job.k.row,
        min(s.k_rows, s.k_visible) - key, job.head_size);
    end_group();
    wait_for_groups<0>();
    __syncthreads();
    if (key == keys.begin / kKeysAligned * kKeysAligned) {
      wild = __syncthreads_or(!q.template all_splits_well<Plan::kRows, Plan::kThreads>()) != 0;
      q.template pack_left<Plan::kRows, Plan::kThreads>();
      __syncthreads();
    }
    wild |= __syncthreads_or(!k.template all_splits_well<Plan::kKeys, Plan::kThreads>()) != 0;
    Accumulators<1, Plan::kKeys> scores;
    multiply_all<1, Plan::kKeys>(lane, q, 16 * warp_number(), k, job.head_size, scores);
    __syncthreads();  // nobody needs these keys any more
    const Pairs pairs{sequence, head, mine, key};
    if (wild) multiply_wild<float>(job, s, pairs, scores[0]);
    PairBits bits = pairs.seen_in(rows_seen(band, s, mine).of);
    pairs.apply_mask(job, s, bits);
    Pairs::template scale_scores<true>(job, scores[0]);
    pairs.add_bias(job, s, scores[0], bits);
    Pairs::keep_only(scores[0], bits, -kInfinity);
    float factor[2];
    softmax.step(scores[0], kLog2e, factor, nobody);
  }
  float lse[2];
  softmax.finish(kLog2e, lse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float score = softmax.top[r], own = softmax.exponent(score, softmax.maximum[r], kLog2e);
    if (!far[r] || threadIdx.x % 4 != 0) continue;
    const float sink = job.sinks != nullptr ? job.sinks[head] : -INFINITY;
    const float top = fmaxf(score, sink);
    // Weights of keys were summed up as if that of `score` were 2^own.
    const float total =
        softmax.sum[r] == 0 ? 0.0f : softmax.sum[r] * exp2f(-own) * expf(score - top);
    const std::int64_t at = job.lse_row(s, head, mine + lane_row(r));
    x.rows.top[at] = top;
    x.rows.share[at] = 1 / (total + (sink == -INFINITY ? 0.0f : expf(sink - top)));
  }
}

}  // namespace

void mma_rows(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
              const MmaBackward& x, cudaStream_t stream) {
  const dim3 blocks(grid.row_tiles(kRowsOfBlock), static_cast<unsigned>(job.heads), grid.sequences);
  dispatch_device(elements.dtype, [&]<class T>() {
    mma_rows_kernel<T><<<blocks, kRowThreads, 0, stream>>>(job, x);
  });
  if (elements.exact_floats()) {
    dispatch_size<float>(job.head_size, [&]<class T, int kSize>() {
      using Plan = FarRows<kSize>;
      const dim3 tiles(grid.row_tiles(Plan::kRows), blocks.y, blocks.z);
      auto* const kernel = mma_far_rows_kernel<kSize>;
      allow_shared(reinterpret_cast<const void*>(kernel), Plan::kBytes);
      kernel<<<tiles, Plan::kThreads, Plan::kBytes, stream>>>(job, x);
    });
  }
  check_launch("attention backward");
}

}  // namespace qkv::cuda
