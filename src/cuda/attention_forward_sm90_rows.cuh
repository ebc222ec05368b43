// What rows of the forward pass leave behind: outputs, lse, and what they have told. See
// attention_forward_sm90.cuh.
#pragma once

#include "cuda/attention_forward_sm90_pairs.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/store.cuh"
#include "cuda/tile/wgmma.cuh"

namespace qkv::cuda::forward_sm90 {

// Rows of a warp of the block, `o` times `factor`.
template <class S, int Count>
__device__ void store_rows(const Params& p, Shared<S>& shared, const Work& work, int warp,
                           const float (&o)[Count], const float (&factor)[2]) {
  using T = typename S::T;
  const bool seeing = __all_sync(0xffffffff, factor[0] != 0 && factor[1] != 0);
  if (S::Staged && 16 * warp + 16 <= work.seeing && seeing) {
    T* const tile = shared.out[warp];
    if (threadIdx.x % 32 == 0) wait_sent<false>();  // of the Work before
    __syncwarp();
    stage_rows(tile, o, factor);
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int slab = 0; slab < S::D / kSlab; ++slab)
        store_slab(tile + slab * 16 * kSlab, p.out_rows, slab * kSlab,
                   work.q_start + work.row0 + 16 * warp, work.head, work.q_batch);
      commit_stores();
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = 16 * warp + lane_now() / 4 + 8 * r;
    T* const out = static_cast<T*>(p.out) + work.q_batch * p.out_strides.batch +
                   work.head * p.out_strides.head +
                   std::int64_t(work.q_start + work.row0 + at) * p.out_strides.row;
    store_row(out, at < work.rows, p.head_size, o, r, factor[r],
              at >= work.seeing || factor[r] == 0);
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
  if (threadIdx.x % 32 == 0) p.largest[(work.first_told + row) / 16] = unknown ? NAN : top;
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
  p.told[work.first_told + at] = told;
  if (at >= work.rows) return;
  const std::int64_t i = work.first_row + at;
  const Sm90Statistics& to = p.statistics;
  if (to.entropy) to.entropy[i] = sees ? told.entropy : 0.f;
  if (to.top_weight) to.top_weight[i] = sees ? told.top_weight : 0.f;
  if constexpr (S::Watch::finds_keys())
    to.top_index[i] = sees ? (lane == 0 ? watch.top_key[0] : watch.top_key[1]) : -1;
}

// All that rows of a warp of the block leave behind but the output, which must be multiplied by
// `factor`.
template <class S>
__device__ void finish_rows(const Params& p, const Work& work, int warp, OnlineSoftmax& softmax,
                            const typename S::Watch& watch, float (&factor)[2]) {
  const int row = 16 * warp + lane_now() / 4;
  float lse[2];
  softmax.finish(p.scale, lse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    bool sees = at < work.seeing && softmax.sum[r] != 0;
    factor[r] = softmax.sum[r] == 0 ? 0 : __fdividef(1, softmax.sum[r]);
    if constexpr (S::Pairs == Said::dropout) factor[r] *= p.of_pairs.dropout.kept;
    if (p.sinks) {
      const KeyRange seen = work.band.of(work.row0 + at);
      const float sink = p.sinks[work.head];
      lse[r] = softmax.sum[r] == 0 ? sink : with_sink(sink, lse[r], factor[r]);
      sees = at < work.seeing && seen.begin < seen.end;
    }
    if (p.lse && at < work.rows && threadIdx.x % 4 == 0)
      p.lse[work.first_row + at] = sees ? lse[r] : -kInfinity;
  }
  if constexpr (S::Statistics)
    store_statistics<S>(p, work, row, watch, softmax);
  else if (p.largest)
    store_largest<S>(p, work, row, softmax);
}

// Adds what was taken out of V to the rows of a warp that see it. Slow, and never on the path of
// ordinary values.
template <class S, int Count>
__device__ void restore_tainted(const Params& p, const Work& work, int warp, float (&o)[Count]) {
  using T = typename S::T;
  if (!work.is_tainted()) return;
  const int row = work.row0 + 16 * warp + threadIdx.x % 32 / 4;
  const T* const values = static_cast<const T*>(p.values) + work.k_batch * p.v_strides.batch +
                          work.head / p.group * p.v_strides.head;
  const KeyRange seen[2] = {work.band.of(row), work.band.of(row + 8)};
  const int end = max(seen[0].end, seen[1].end);
  for (int key = min(seen[0].begin, seen[1].begin); key < end; ++key) {
    if (!work.must_inspect(key / S::Keys)) continue;
    const T* const at = values + (work.k_start + key) * p.v_strides.row;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const KeyRange range = seen[i / 2 % 2];
      if (column >= p.head_size || key < range.begin || key >= range.end) continue;
      if (is_hidden<S>(p, work, row + 8 * (i / 2 % 2), key)) continue;
      const float value = float(at[column]);
      if (!isfinite(value)) o[i] += value;
    }
  }
}

}  // namespace qkv::cuda::forward_sm90
