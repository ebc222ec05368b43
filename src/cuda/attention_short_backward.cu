// Attention of short sequences, backward: a warp makes dq of 16 queries from all keys and leaves
// the weights and their gradients in shared memory; then it makes dk and dv of 16 keys from those
// of all queries. No sum is shared, so every one has its order.
#include "cuda/attention_short.cuh"

namespace qkv::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, at least

// A number for each pair of a group, in shared memory.
template <class T>
struct PairTile {
  T* data;
  int pitch;

  // 16 rows and 16 columns; each lane its own.
  __device__ void store(const std::uint32_t (&pairs)[4], int row, int column) const {
    for (int e = 0; e < 4; ++e) {
      T* to = data + (row + pair_row(e % 2 * 2)) * pitch + column + pair_column(e / 2, 0);
      *reinterpret_cast<std::uint32_t*>(to) = pairs[e];
    }
  }
  // The same, turned: columns [column, column + 16) as the first operand of a product over rows.
  __device__ void load_turned(int row, int column, std::uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32;
    const T* from = data + (row + lane / 16 * 8 + lane % 8) * pitch + column + lane / 8 % 2 * 8;
    load_matrices_transposed(to, static_cast<std::uint32_t>(__cvta_generic_to_shared(from)));
  }
};

// Rows of a group in shared memory, what belongs to its pairs, and of each query its lse and dlse -
// dout . out.
template <class T, int kSize>
struct BackwardRoom {
  ShortTile<T, kSize> q, k, v, dout;
  PairTile<T> weights, dlogits;
  float *lse, *base;

  __host__ __device__ static constexpr std::size_t bytes(int rows) {
    return std::size_t{4} * rows * ShortTile<T, kSize>::kPitch * sizeof(T) +
           std::size_t{2} * rows * (rows + 8) * sizeof(T) + std::size_t{2} * rows * sizeof(float);
  }
  __device__ BackwardRoom(char* memory, int rows) {
    T* tile = reinterpret_cast<T*>(memory);
    for (ShortTile<T, kSize>* to : {&q, &k, &v, &dout}) {
      to->data = tile;
      tile += rows * ShortTile<T, kSize>::kPitch;
    }
    for (PairTile<T>* to : {&weights, &dlogits}) {
      *to = {tile, rows + 8};
      tile += rows * (rows + 8);
    }
    lse = reinterpret_cast<float*>(tile);
    base = lse + rows;
  }
};

// The weight of a pair through dropout and the gradient of its logit; both 0 where it is hidden.
struct PairGradient {
  float weight = 0, dlogit = 0;
};
struct QueryRow {
  float lse, base;
};
__device__ inline PairGradient gradient_of(const AttentionJob& job, const QueryRow& row, float dot,
                                           float dp, float keep) {
  if (row.lse == -INFINITY) return {};
  const float score = capped(job, dot), p = __expf(score - row.lse);
  PairGradient g;
  g.weight = keep == 0 ? 0.0f : p * keep;
  g.dlogit = p * ((keep == 0 ? 0.0f : dp * keep) + row.base);
  if (job.softcap > 0) {
    const float tanh = score / job.softcap;
    g.dlogit *= 1 - tanh * tanh;
  }
  return g;
}

// One row of dq, or of dk and dv, pair by pair: where something is not finite, a hidden pair must
// not be multiplied at all. A pair that is seen has a weight above 0.
template <class T, int kSize, bool kKeys>
__device__ __noinline__ void careful_row(const AttentionJob& job, const Sequence& s,
                                         const ShortGroup& group,
                                         const BackwardRoom<T, kSize>& room, int row,
                                         const BackwardTensors& to) {
  constexpr int kEach = kSize / 32;
  float first[kEach] = {}, second[kEach] = {};  // dq, or dk and dv
  for (int other = 0; other < (kKeys ? s.q_rows : s.k_rows); ++other) {
    const int i = kKeys ? other : row, j = kKeys ? row : other;
    if (!is_visible(job, s, group.head, i, j) || room.lse[i] == -INFINITY) continue;
    const float dot = careful_dot<T, kSize>(room.q.row(i), room.k.row(j));
    const float dp = careful_dot<T, kSize>(room.dout.row(i), room.v.row(j));
    const PairGradient g =
        gradient_of(job, {room.lse[i], room.base[i]}, dot, dp, kept(job, group, i, j));
    for (int n = 0; n < kEach; ++n) {
      const int d = n * 32 + group.lane;
      first[n] = fmaf(g.dlogit, to_float((kKeys ? room.q : room.k).row(other)[d]), first[n]);
      if (kKeys && g.weight != 0) {
        second[n] = fmaf(g.weight, to_float(room.dout.row(other)[d]), second[n]);
      }
    }
  }
  const auto put = [&](const Rows& x, int batch, int start, const float(&sums)[kEach], float f) {
    T* out = x.template at<T>(batch, group.head, start + row);
    for (int n = 0; n < kEach; ++n) out[n * 32 + group.lane] = from_float<T>(f * sums[n]);
  };
  put(kKeys ? to.dk : to.dq, kKeys ? s.k_batch : s.q_batch, kKeys ? s.k_start : s.q_start, first,
      job.scale);
  if (kKeys) put(to.dv, s.k_batch, s.k_start, second, 1);
}

template <class T, int kSize>
__device__ void load_left(const ShortTile<T, kSize>& x, int first,
                          std::uint32_t (&to)[kSize / 16][4]) {
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) x.left(first, k, to[k]);
}

// dq of 16 queries, and what the keys need of them.
template <class T, int kSize>
__device__ void queries(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                        const BackwardRoom<T, kSize>& room, const BackwardTensors& to) {
  const int first = group.warp * kTileRows;
  std::uint32_t q[kSize / 16][4], dout[kSize / 16][4];
  load_left(room.q, first, q);
  load_left(room.dout, first, dout);
  const int rows[2] = {first + pair_row(0), first + pair_row(2)};
  const VisibleKeys visible[2] = {VisibleKeys(job, s, rows[0]), VisibleKeys(job, s, rows[1])};
  const QueryRow query[2] = {{room.lse[rows[0]], room.base[rows[0]]},
                             {room.lse[rows[1]], room.base[rows[1]]}};
  float sums[kSize / 8][4] = {};
  for (int key = 0; key < s.k_rows; key += kTileRows) {
    Pairs dots, dps;
    multiply(q, room.k, key, dots);
    multiply(dout, room.v, key, dps);
    Pairs keep;
    kept_pairs(job, group, first, key, keep);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int half = n % 2, j = key + pair_column(n / 2, 0);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float &dot = dots[n / 2][2 * half + e], &dp = dps[n / 2][2 * half + e];
        PairGradient g;
        if (visible[half].sees(job, s, group.head, rows[half], j + e)) {
          g = gradient_of(job, query[half], dot, dp, keep[n / 2][2 * half + e]);
        }
        dot = g.dlogit;
        dp = g.weight;
      }
    }
    std::uint32_t weights[4], dlogits[4];
    as_left<T>(dps, weights);
    as_left<T>(dots, dlogits);
    room.weights.store(weights, first, key);
    room.dlogits.store(dlogits, first, key);
    accumulate(dlogits, room.k, key, sums);
  }
  const float factor[2] = {job.scale, job.scale};
  store_sums<T, kSize>(sums, factor, to.dq.at<T>(s.q_batch, group.head, s.q_start + first),
                       to.dq.row, s.q_rows - first);
}

// dk and dv of 16 keys.
template <class T, int kSize>
__device__ void keys(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                     const BackwardRoom<T, kSize>& room, const BackwardTensors& to) {
  const int first = group.warp * kTileRows;
  float dk[kSize / 8][4] = {}, dv[kSize / 8][4] = {};
  for (int row = 0; row < s.q_rows; row += kTileRows) {
    std::uint32_t left[4];
    room.dlogits.load_turned(row, first, left);
    accumulate(left, room.q, row, dk);
    room.weights.load_turned(row, first, left);
    accumulate(left, room.dout, row, dv);
  }
  const float scale[2] = {job.scale, job.scale}, one[2] = {1, 1};
  const int count = s.k_rows - first;
  store_sums<T, kSize>(dk, scale, to.dk.at<T>(s.k_batch, group.head, s.k_start + first), to.dk.row,
                       count);
  store_sums<T, kSize>(dv, one, to.dv.at<T>(s.k_batch, group.head, s.k_start + first), to.dv.row,
                       count);
}

// Of 16 queries: lse, and dlse - dout . out. Some lanes have a row together, 16 bytes each.
template <class T, int kSize>
__device__ void load_rows(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                          const BackwardRoom<T, kSize>& room, const BackwardTensors& x) {
  constexpr int kLanes = kSize / 8, kRows = 32 / kLanes;
  const int d = group.lane % kLanes * 8;
#pragma unroll
  for (int r = 0; r < kTileRows; r += kRows) {
    const int i = group.warp * kTileRows + r + group.lane / kLanes;
    const bool inside = i < s.q_rows;
    float dot = 0;
    if (inside) {
      const auto a = *reinterpret_cast<const Pack16<T>*>(
          x.dout.at<const T>(s.q_batch, group.head, s.q_start + i) + d);
      const auto b = *reinterpret_cast<const Pack16<T>*>(
          x.out.at<const T>(s.q_batch, group.head, s.q_start + i) + d);
      for (int k = 0; k < 8; ++k) dot += to_float(a.values[k]) * to_float(b.values[k]);
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, step);
    }
    if (d != 0) continue;
    const std::int64_t at = inside ? job.lse_row(s, group.head, i) : 0;
    room.lse[i] = inside ? x.lse[at] : -INFINITY;
    room.base[i] = inside ? (x.dlse != nullptr ? x.dlse[at] : 0.0f) - dot : 0.0f;
  }
}

// Everything of a group into shared memory. True when this thread saw what is not finite.
template <class T, int kSize>
__device__ bool load_room(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                          const BackwardRoom<T, kSize>& room, const BackwardTensors& x) {
  const int padded = group.warps * kTileRows, thread = group.thread(), threads = group.threads();
  const auto load = [&](const ShortTile<T, kSize>& to, const Rows& from, bool is_query) {
    const int batch = is_query ? s.q_batch : s.k_batch, start = is_query ? s.q_start : s.k_start;
    return to.load(from.template at<const T>(batch, group.head, start), from.row,
                   is_query ? s.q_rows : s.k_rows, padded, thread, threads);
  };
  bool strange = load(room.q, job.q, true);
  strange |= load(room.k, job.k, false);
  strange |= load(room.v, job.v, false);
  strange |= load(room.dout, x.dout, true);
  load_rows(job, s, group, room, x);
  return strange;
}

// The arguments stay where they are: what is called with them would otherwise get copies.
template <class T, int kSize>
__global__ void __launch_bounds__(kShort / kTileRows * 32, kSize <= 64 ? 2 : 1)
    short_backward_kernel(const __grid_constant__ AttentionJob job, unsigned sequences, int warps,
                          const __grid_constant__ BackwardTensors x) {
  extern __shared__ uint4 shared[];
  const ShortGroup group(job, warps, sequences);
  const Sequence s = job.sequences[group.sequence];
  const int padded = warps * kTileRows;
  const BackwardRoom<T, kSize> room(
      reinterpret_cast<char*>(shared) + group.index * BackwardRoom<T, kSize>::bytes(padded),
      padded);
  const bool strange = group.has_work && load_room(job, s, group, room, x);
  // Of the whole block: who is careful without need is only slower.
  const bool careful = __syncthreads_or(strange) != 0;
  const int first = group.warp * kTileRows;
  if (careful) {
    for (int row = first; row < first + kTileRows; ++row) {
      if (!group.has_work) break;
      if (row < s.q_rows) careful_row<T, kSize, false>(job, s, group, room, row, x);
      if (row < s.k_rows) careful_row<T, kSize, true>(job, s, group, room, row, x);
    }
    return;
  }
  if (group.has_work && first < s.q_rows) queries(job, s, group, room, x);
  __syncthreads();
  if (group.has_work && first < s.k_rows) keys(job, s, group, room, x);
}

template <class T, int kSize>
void launch(const AttentionJob& job, const AttentionGrid& grid, const BackwardTensors& x,
            cudaStream_t stream) {
  const int warps = short_warps(std::max(grid.longest_q, grid.longest_k));
  const int groups = std::max(1, kWarps / warps);
  const std::size_t bytes = groups * BackwardRoom<T, kSize>::bytes(warps * kTileRows);
  auto* kernel = short_backward_kernel<T, kSize>;
  allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  const std::int64_t pairs = std::int64_t{grid.sequences} * job.heads;
  kernel<<<blocks_for(pairs, groups), static_cast<unsigned>(groups * warps * 32), bytes, stream>>>(
      job, grid.sequences, warps, x);
}

}  // namespace

std::int64_t short_backward_bytes(std::int64_t rows, std::int64_t head_size) {
  const int warps = short_warps(rows), padded = warps * kTileRows;
  const std::int64_t groups = std::max(1, kWarps / warps);
  const auto each = [&]<int kSize>() {
    return static_cast<std::int64_t>(BackwardRoom<device_bf16, kSize>::bytes(padded));
  };
  return groups * (head_size == 32   ? each.template operator()<32>()
                   : head_size == 64 ? each.template operator()<64>()
                                     : each.template operator()<128>());
}

void short_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                    const BackwardTensors& tensors, cudaStream_t stream) {
  const auto run = [&]<class T>() {
    switch (job.head_size) {
      case 32: return launch<T, 32>(job, grid, tensors, stream);
      case 64: return launch<T, 64>(job, grid, tensors, stream);
      default: return launch<T, 128>(job, grid, tensors, stream);
    }
  };
  if (dtype == DType::bf16) {
    run.template operator()<device_bf16>();
  } else {
    run.template operator()<device_f16>();
  }
  check_launch("attention backward");
}

}  // namespace qkv::cuda
