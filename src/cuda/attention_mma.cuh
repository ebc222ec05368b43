// What the forward and backward kernels by matrix instructions share.
#pragma once

#include "cuda/attention_mma.h"
#include "cuda/attention_pairs.cuh"
#include "cuda/tile/exact.cuh"
#include "cuda/tile/halves.cuh"
#include "cuda/tile/launch.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/tf32.cuh"

namespace qkv::cuda {

template <class T>
inline constexpr bool kHalves = sizeof(T) == 2;
template <class T>
inline constexpr bool kExact = std::same_as<T, float>;
// What is rounded to TF32 has no softcap, biases, masks of pairs and dropout: permission to round
// is used where that is fastest.
template <class T>
inline constexpr bool kPairOptions = !std::same_as<T, Tf32>;

// Calls f.template operator()<T, kSize>() for heads of `size`, which are padded with zeros: of 16
// bits to 64, 128 or 256, of floats to 32, 64, 96 or 128.
template <class T, class F>
auto dispatch_size(std::int64_t size, F&& f) {
  if constexpr (kHalves<T>) {
    if (size <= 64) return f.template operator()<T, 64>();
    if (size <= 128) return f.template operator()<T, 128>();
    return f.template operator()<T, 256>();
  } else {
    if (size <= 32) return f.template operator()<T, 32>();
    if (size <= 64) return f.template operator()<T, 64>();
    if (size <= 96) return f.template operator()<T, 96>();
    return f.template operator()<T, 128>();
  }
}
template <class F>
auto dispatch_mma(MmaElements elements, std::int64_t size, F&& f) {
  switch (elements.dtype) {
    case DType::bf16: return dispatch_size<device_bf16>(size, f);
    case DType::f16: return dispatch_size<device_f16>(size, f);
    default: return elements.tf32 ? dispatch_size<Tf32>(size, f) : dispatch_size<float>(size, f);
  }
}
// Blocks are begun in the order of their numbers. Several heads are worked on together, their first
// tiles before their second, so that the longest come first: as many as have keys and values (for
// dk and dv: queries and dout) that fit half of L2, and no fewer than give every multiprocessor
// kRounds tiles.
struct WorkOrder {
  static constexpr int kRounds = 4;
  int tiles, pairs, at_once;  // of a head; heads of all sequences; and how many of them together
  int heads, sequences;
  // The same head of all sequences before the next head: where they share a bias.
  bool by_head;

  WorkOrder(const AttentionJob& job, const AttentionGrid& grid, unsigned tiles_each, int heads_each,
            std::int64_t rows_read, std::int64_t item)
      : tiles(static_cast<int>(tiles_each)),
        pairs(heads_each * static_cast<int>(grid.sequences)),
        heads(heads_each),
        sequences(static_cast<int>(grid.sequences)),
        by_head(job.bias.data != nullptr && job.bias.batch == 0 && job.bias.head != 0) {
    int device = 0, cache = 0;
    check_cuda(cudaGetDevice(&device), "attention");
    check_cuda(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "attention");
    const std::int64_t bytes = rows_read * (job.head_size + job.value_size) * item;
    const std::int64_t fit = cache / 2 / std::max<std::int64_t>(1, bytes);
    const std::int64_t fill = kRounds * multiprocessors() / tiles + 1;
    at_once = static_cast<int>(std::min<std::int64_t>(std::max(fit, fill), pairs));
  }
  unsigned blocks() const { return static_cast<unsigned>(tiles) * static_cast<unsigned>(pairs); }
};
struct Place {
  int head, sequence, tile;

  __device__ explicit Place(const WorkOrder& order) {
    const auto block = static_cast<int>(blockIdx.x);
    const int before = block / (order.tiles * order.at_once) * order.at_once;
    const int together = min(order.at_once, order.pairs - before);
    const int within = block - before * order.tiles;
    const int pair = before + within % together;
    head = order.by_head ? pair / order.sequences : pair % order.heads;
    sequence = order.by_head ? pair % order.sequences : pair / order.heads;
    tile = within / together;
  }
};

// Rows from s.q_seeing on see nothing, whatever this says.
__device__ inline BandMask band_of(const AttentionJob& job, const Sequence& s) {
  const auto side = [](std::int64_t keys) {
    return keys < 0 ? kUnbounded : static_cast<int>(min(keys, std::int64_t{kUnbounded}));
  };
  return {side(job.left), job.causal ? 0 : side(job.right), static_cast<int>(s.offset),
          min(s.k_rows, s.k_visible)};
}

// Tiles begin at multiples of these, since pairs of 16 queries and 32 keys share random numbers;
// and what is said of 16 neighbouring keys may come in one vector.
inline constexpr int kKeysAligned = 32, kQueriesAligned = 16;

__device__ inline bool meet(const KeyRange& a, int begin, int end) {
  return a.begin < end && a.end > begin && a.begin < a.end;
}
__device__ inline bool contains(const KeyRange& a, int begin, int end) {
  return a.begin <= begin && a.end >= end;
}

// to = rows [first, first + 16 kBlocks) of `left` times those of `right`, kColumns of them, whose
// columns from `size` on are padding.
template <int kBlocks, int kColumns, class T, int kSize>
__device__ __forceinline__ void multiply_all(const LaneReader<T, kSize>& lane,
                                             const WarpTile<T, kSize>& left, int first,
                                             const WarpTile<T, kSize>& right, int size,
                                             Accumulators<kBlocks, kColumns>& to) {
  clear<kBlocks, kColumns>(to);
#pragma unroll
  for (int c = 0; c < kSize / 16; ++c) {
    if (is_padding<kSize>(c, size)) break;
    multiply_rows<kBlocks, kColumns, false>(lane, c, left, first, right, to);
  }
}

// The product of two rows if one of them holds what does not split well, NaN and Inf among it, else
// `otherwise`. In one order, whoever asks. A call, so that the registers of who asks are not those
// of this rare case.
template <class T>
__device__ __noinline__ float wild_product(const T* q, const T* k, int size, float otherwise) {
  float product = 0;
  bool wild = false;
  for (int d = 0; d < size; ++d) {
    const float x = to_float(q[d]), y = to_float(k[d]);
    wild |= !splits_well(x) || !splits_well(y);
    product = fmaf(x, y, product);
  }
  return wild ? product : otherwise;
}
// Products of such rows once more, one by one.
template <class T, class Pairs, int kCount>
__device__ void multiply_wild(const AttentionJob& job, const Sequence& s, const Pairs& pairs,
                              float (&x)[kCount]) {
  Pairs::each(x, [&](float& product, int r, int n) {
    const int i = min(pairs.query(r, n), s.q_rows - 1), j = min(pairs.key(r, n), s.k_rows - 1);
    product = wild_product(job.q.at<const T>(s.q_batch, pairs.head, s.q_start + i),
                           job.k.at<const T>(s.k_batch, pairs.head / job.group, s.k_start + j),
                           job.head_size, product);
  });
}

// Whether query i sees key j: the whole of it, also what is not an interval.
__device__ inline bool sees_pair(const AttentionJob& job, const Sequence& s, int sequence, int head,
                                 int i, int j) {
  return i < s.q_rows && is_visible(job, s, head, i, j) &&
         (job.bias.data == nullptr || bias_of(job, s, sequence, head, i, j) != -INFINITY);
}

// Where pairs are hidden, what weights are multiplied by has zeros in the place of what is not
// finite, so that who does not see it does not feel it. Here it is added to the rows that do: a
// weight times NaN or Inf is NaN or Inf. The warp's rows begin at `first`; row_of(p) has `size`
// columns, for each p of `passing`, and sees(row, p).
template <class T, int kSize, int kBlocks, class RowOf, class Sees>
__device__ void add_strange(const KeyRange& passing, const RowOf& row_of, int size, int first,
                            const Sees& sees, Accumulators<kBlocks, kSize>& sums) {
  using Lane = LaneReader<T, kSize>;
#pragma unroll 1
  for (int p = passing.begin; p < passing.end; ++p) {
    const T* const row = row_of(p);
    bool seen[kBlocks][2];
#pragma unroll
    for (int r = 0; r < 2 * kBlocks; ++r) {
      seen[r / 2][r % 2] = sees(first + r / 2 * 16 + lane_row(r % 2), p);
    }
#pragma unroll
    for (int n = 0; n < kSize / 4; ++n) {
      const int column = Lane::sum_column(n);
      const float value = column < size ? to_float(row[column]) : 0.0f;
      if (isfinite(value)) continue;
#pragma unroll
      for (int r = 0; r < 2 * kBlocks; ++r) {
        if (seen[r / 2][r % 2]) sums[r / 2][Lane::sum_index(n) + r % 2 * 2] += value;
      }
    }
  }
}

// The same in all lanes, and known to be.
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
}

// What the lane's two rows of a block of queries see. Rows from q_seeing on see nothing.
struct RowsSeen {
  KeyRange of[2];
};
__device__ inline RowsSeen rows_seen(const BandMask& band, const Sequence& s, int first) {
  RowsSeen seen;
  for (int half = 0; half < 2; ++half) {
    const int i = first + lane_row(half);
    seen.of[half] = i < s.q_seeing ? band.of(i) : KeyRange{0, 0};
  }
  return seen;
}

__device__ inline std::uint32_t quad_or(std::uint32_t x) {
  x |= __shfl_xor_sync(0xffffffff, x, 1);
  return x | __shfl_xor_sync(0xffffffff, x, 2);
}

}  // namespace qkv::cuda
