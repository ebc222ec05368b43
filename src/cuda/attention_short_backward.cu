// Attention of short sequences, backward: a warp makes dq of 16 queries from all keys, then dk and
// dv of 16 keys from all queries. No sum is shared, so every one has its order.
#include "cuda/attention_short.cuh"

namespace qkv::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, at least

// Rows of a group in shared memory, and of each query its lse and dlse - dout . out.
template <class T, int kSize>
struct BackwardRoom {
  ShortTile<T, kSize> q, k, v, dout;
  float *lse, *base;

  __host__ __device__ static constexpr std::size_t bytes(int rows) {
    return std::size_t{4} * rows * ShortTile<T, kSize>::kPitch * sizeof(T) +
           std::size_t{2} * rows * sizeof(float);
  }
  __device__ BackwardRoom(char* memory, int rows) {
    T* tile = reinterpret_cast<T*>(memory);
    for (ShortTile<T, kSize>* to : {&q, &k, &v, &dout}) {
      to->data = tile;
      tile += rows * ShortTile<T, kSize>::kPitch;
    }
    lse = reinterpret_cast<float*>(tile);
    base = lse + rows;
  }
};

// The weight of a pair through dropout and the gradient of its logit; both 0 where it is hidden.
struct PairGradient {
  float weight = 0, dlogit = 0;
};
struct PairPlace {
  int i, j;
};
__device__ inline PairGradient gradient_of(const AttentionJob& job, const Sequence& s,
                                           const ShortGroup& group, PairPlace at, float dot,
                                           float dp, float lse, float base) {
  const Score pair = score_of(job, s, group.sequence, group.head, at.i, at.j, dot);
  if (!pair.visible || lse == -INFINITY) return {};
  const float p = expf(pair.s - lse), keep = kept(job, group.sequence, group.head, at.i, at.j);
  PairGradient g;
  g.weight = keep == 0 ? 0.0f : p * keep;
  g.dlogit = p * ((keep == 0 ? 0.0f : dp * keep) + base);
  if (job.softcap > 0) {
    const float tanh = tanhf(pair.a / job.softcap);
    g.dlogit *= 1 - tanh * tanh;
  }
  return g;
}

// One row of dq, or of dk and dv, pair by pair: where something is not finite, a hidden pair must
// not be multiplied at all. A pair that is seen has a weight above 0.
template <class T, int kSize, bool kKeys>
__device__ void careful_row(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                            const BackwardRoom<T, kSize>& room, int row,
                            const BackwardTensors& to) {
  constexpr int kEach = kSize / 32;
  float first[kEach] = {}, second[kEach] = {};  // dq, or dk and dv
  for (int other = 0; other < (kKeys ? s.q_rows : s.k_rows); ++other) {
    const PairPlace at{kKeys ? other : row, kKeys ? row : other};
    if (!is_visible(job, s, group.head, at.i, at.j)) continue;
    const float dot = careful_dot<T, kSize>(room.q.row(at.i), room.k.row(at.j));
    const float dp = careful_dot<T, kSize>(room.dout.row(at.i), room.v.row(at.j));
    const PairGradient g = gradient_of(job, s, group, at, dot, dp, room.lse[at.i], room.base[at.i]);
    if (room.lse[at.i] == -INFINITY) continue;
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

// dq of 16 queries.
template <class T, int kSize>
__device__ void queries(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                        const BackwardRoom<T, kSize>& room, const BackwardTensors& to) {
  const int first = group.warp * kTileRows;
  std::uint32_t q[kSize / 16][4], dout[kSize / 16][4];
  load_left(room.q, first, q);
  load_left(room.dout, first, dout);
  float sums[kSize / 8][4] = {};
  for (int key = 0; key < s.k_rows; key += kTileRows) {
    Pairs dots, dps;
    multiply(q, room.k, key, dots);
    multiply(dout, room.v, key, dps);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = first + pair_row(n % 4), j = key + pair_column(n / 4, n % 4);
      float& dot = dots[n / 4][n % 4];
      dot = gradient_of(job, s, group, {i, j}, dot, dps[n / 4][n % 4], room.lse[i], room.base[i])
                .dlogit;
    }
    accumulate(dots, room.k, key, sums);
  }
  const float factor[2] = {job.scale, job.scale};
  store_sums<T, kSize>(sums, factor, to.dq.at<T>(s.q_batch, group.head, s.q_start + first),
                       to.dq.row, s.q_rows - first);
}

// dk and dv of 16 keys: the same tiles of pairs, seen from the other side.
template <class T, int kSize>
__device__ void keys(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                     const BackwardRoom<T, kSize>& room, const BackwardTensors& to) {
  const int first = group.warp * kTileRows;
  std::uint32_t k[kSize / 16][4], v[kSize / 16][4];
  load_left(room.k, first, k);
  load_left(room.v, first, v);
  float dk[kSize / 8][4] = {}, dv[kSize / 8][4] = {};
  for (int row = 0; row < s.q_rows; row += kTileRows) {
    Pairs dots, dps;
    multiply(k, room.q, row, dots);
    multiply(v, room.dout, row, dps);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = row + pair_column(n / 4, n % 4), j = first + pair_row(n % 4);
      float &dot = dots[n / 4][n % 4], &dp = dps[n / 4][n % 4];
      const PairGradient g = gradient_of(job, s, group, {i, j}, dot, dp, room.lse[i], room.base[i]);
      dot = g.dlogit;
      dp = g.weight;
    }
    accumulate(dots, room.q, row, dk);
    accumulate(dps, room.dout, row, dv);
  }
  const float scale[2] = {job.scale, job.scale}, one[2] = {1, 1};
  const int count = s.k_rows - first;
  store_sums<T, kSize>(dk, scale, to.dk.at<T>(s.k_batch, group.head, s.k_start + first), to.dk.row,
                       count);
  store_sums<T, kSize>(dv, one, to.dv.at<T>(s.k_batch, group.head, s.k_start + first), to.dv.row,
                       count);
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
  for (int i = group.warp * kTileRows; i < (group.warp + 1) * kTileRows; ++i) {
    const bool inside = i < s.q_rows;
    float dot = 0;
    if (inside) {
      dot = careful_dot<T, kSize>(x.dout.at<const T>(s.q_batch, group.head, s.q_start + i),
                                  x.out.at<const T>(s.q_batch, group.head, s.q_start + i));
    }
    if (group.lane != 0) continue;
    const std::int64_t at = inside ? job.lse_row(s, group.head, i) : 0;
    room.lse[i] = inside ? x.lse[at] : -INFINITY;
    room.base[i] = inside ? (x.dlse != nullptr ? x.dlse[at] : 0.0f) - dot : 0.0f;
  }
  return strange;
}

template <class T, int kSize>
__global__ void short_backward_kernel(AttentionJob job, unsigned sequences, int warps,
                                      BackwardTensors x) {
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
  if (!group.has_work) return;
  const int first = group.warp * kTileRows;
  if (careful) {
    for (int row = first; row < first + kTileRows; ++row) {
      if (row < s.q_rows) careful_row<T, kSize, false>(job, s, group, room, row, x);
      if (row < s.k_rows) careful_row<T, kSize, true>(job, s, group, room, row, x);
    }
    return;
  }
  if (first < s.q_rows) queries(job, s, group, room, x);
  if (first < s.k_rows) keys(job, s, group, room, x);
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
