// What the forward and backward kernels by matrix instructions share.
#pragma once

#include "cuda/attention_mma.h"
#include "cuda/attention_pairs.cuh"
#include "cuda/tile/halves.cuh"
#include "cuda/tile/launch.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/tf32.cuh"

namespace qkv::cuda {

// Calls f.template operator()<T, kSize>() for elements of a dtype. Heads are padded with zeros, of
// floats to 32, 64, 96 or 128, of 16 bits (dispatch_halves) to 64, 128 or 256.
template <class T, class F>
auto dispatch_size(std::int64_t size, F&& f) {
  if (size <= 64) return f.template operator()<T, 64>();
  if (size <= 128) return f.template operator()<T, 128>();
  return f.template operator()<T, 256>();
}
template <class F>
auto dispatch_halves(DType dtype, std::int64_t size, F&& f) {
  return dtype == DType::bf16 ? dispatch_size<device_bf16>(size, f)
                              : dispatch_size<device_f16>(size, f);
}
template <class F>
auto dispatch_mma(DType dtype, std::int64_t size, F&& f) {
  if (dtype == DType::f32) {
    if (size <= 32) return f.template operator()<float, 32>();
    if (size <= 64) return f.template operator()<float, 64>();
    if (size <= 96) return f.template operator()<float, 96>();
    return f.template operator()<float, 128>();
  }
  return dispatch_halves(dtype, size, f);
}

// Softcap, biases, masks of pairs and dropout are for elements of 16 bits; f32 has its own kernels
// for them, which are exact.
template <class T>
inline constexpr bool kPairOptions = sizeof(T) == 2;

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
__device__ inline Sight sight_of(const AttentionJob& job, const Sequence& s) {
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

// The same in all lanes, and known to be.
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
}

// What the lane's two rows of a block of queries see. Rows from q_seeing on see nothing.
struct RowsSeen {
  KeyRange of[2];
};
__device__ inline RowsSeen rows_seen(const Sight& sight, const Sequence& s, int first) {
  RowsSeen seen;
  for (int half = 0; half < 2; ++half) {
    const int i = first + lane_row(half);
    seen.of[half] = i < s.q_seeing ? sight.of(i) : KeyRange{0, 0};
  }
  return seen;
}

__device__ inline std::uint32_t quad_or(std::uint32_t x) {
  x |= __shfl_xor_sync(0xffffffff, x, 1);
  return x | __shfl_xor_sync(0xffffffff, x, 2);
}

}  // namespace qkv::cuda
