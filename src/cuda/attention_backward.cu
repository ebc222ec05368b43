// Attention backward on any GPU, for every option of the contract, in f32: a kernel per result,
// each block with results of its own, so that every sum has one order and nothing is S x S.
#include "cuda/attention_gradient.cuh"
#include "cuda/tile/launch.cuh"

namespace qkv::cuda {
namespace {

// What a block makes: rows or keys of a tile (and columns of them) of a head of a sequence.
struct Unit {
  std::int64_t tile;
  int head, sequence;
};

struct Units {
  std::int64_t tiles, heads, sequences;

  __host__ __device__ std::int64_t count() const { return tiles * heads * sequences; }
  __device__ Unit operator[](std::int64_t at) const {
    return {at % tiles, static_cast<int>(at / tiles % heads), static_cast<int>(at / tiles / heads)};
  }
};

// What makes a unit: prepare_rows, make_dq or make_dk_or_dv.
using Maker = void (*)(const AttentionJob&, const BackwardTensors&, const BackwardRows&, Unit);

// Behind a faster kernel that has served the call, there is nothing left to do.
template <Maker kMake>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows, Units units) {
  if (job.only_if != nullptr && *job.only_if == 0) return;
  for (std::int64_t at = blockIdx.x; at < units.count(); at += gridDim.x) {
    kMake(job, x, rows, units[at]);
    __syncthreads();  // for the room in shared memory
  }
}

// Blocks take long to begin, even if only to find nothing to do: where that is what they probably
// find, there are few.
template <Maker kMake>
void launch_units(const AttentionJob& job, const BackwardTensors& x, const BackwardRows& rows,
                  Units units, std::size_t bytes, cudaStream_t stream) {
  const std::int64_t most = job.only_if != nullptr ? 2 * multiprocessors() : 1 << 30;
  const auto blocks = static_cast<unsigned>(std::min(most, units.count()));
  if (blocks > 0) backward_kernel<kMake><<<blocks, kThreads, bytes, stream>>>(job, x, rows, units);
}

// f32 lse holds log(sum) well only while it is small: beyond, rows find maximum and sum again.
constexpr float kExactLse = 14;

// Rows of 64 queries: how p is made again, and dlse - do . out.
template <class T>
__device__ void prepare_rows(const AttentionJob& job, const BackwardTensors& x,
                             const BackwardRows& rows, Unit unit) {
  __shared__ ProductRoom room;
  const Lane lane;
  const int head = unit.head, sequence = unit.sequence;
  const Sequence s = job.sequences[sequence];
  const std::int64_t first = unit.tile * kTile;
  if (first >= s.q_rows) return;
  float lse[kSide];
  bool far = false;
  for (int r = 0; r < kSide; ++r) {
    const std::int64_t i = first + lane.row(r);
    lse[r] = i < s.q_rows ? x.lse[job.lse_row(s, head, i)] : -INFINITY;
    far |= lse[r] != -INFINITY && !(fabsf(lse[r]) <= kExactLse);
  }
  float top[kSide], sum[kSide];
  for (int r = 0; r < kSide; ++r) {
    top[r] = lse[r] == -INFINITY ? 0.0f : lse[r];
    sum[r] = 1;
  }
  if (__syncthreads_or(far)) {
    const float sink = job.sinks != nullptr ? job.sinks[head] : -INFINITY;
    for (int r = 0; r < kSide; ++r) {
      top[r] = sink;
      sum[r] = sink == -INFINITY ? 0.0f : 1.0f;
    }
    const auto q = block_of<T>(job.q, s.q_batch, head, s.q_start, first, s.q_rows);
    const Range keys = keys_seen(job, s, first, first + kTile - 1);
    for (std::int64_t j = keys.begin / kTile * kTile; j < keys.end; j += kTile) {
      const auto k = block_of<T>(job.k, s.k_batch, head / job.group, s.k_start, j, s.k_rows);
      Tile t;
      product(q, k, job.head_size, room, t);
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        float highest = top[r], total = 0;
        Score pairs[kSide];
        for (int c = 0; c < kSide; ++c) {
          pairs[c] =
              score_of(job, s, sequence, head, first + lane.row(r), j + lane.column(c), t[r][c]);
          if (pairs[c].visible) highest = fmaxf(highest, pairs[c].s);
        }
        highest = row_max(highest);
        const float base = highest == -INFINITY ? 0.0f : highest;
        for (int c = 0; c < kSide; ++c) {
          if (pairs[c].visible) total += expf(pairs[c].s - base);
        }
        const float shrink = top[r] == -INFINITY ? 0.0f : expf(top[r] - base);
        sum[r] = sum[r] * shrink + row_sum(total);
        top[r] = highest;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    // A row among others that were far keeps its own: what it gets must not depend on them.
    if (fabsf(lse[r]) <= kExactLse) {
      top[r] = lse[r];
      sum[r] = 1;
    }
    const std::int64_t i = first + lane.row(r);
    const bool inside = i < s.q_rows;
    float dot = 0;
    if (inside) {
      const T* a = x.dout.at<const T>(s.q_batch, head, s.q_start + i);
      const T* b = x.out.at<const T>(s.q_batch, head, s.q_start + i);
      for (int d = lane.tx; d < job.value_size; d += 16) {
        dot += to_float(a[d * x.dout.element]) * to_float(b[d * x.out.element]);
      }
    }
    dot = row_sum(dot);
    if (!inside || lane.tx != 0) continue;
    const std::int64_t at = job.lse_row(s, head, i);
    const bool sees = lse[r] != -INFINITY;
    rows.top[at] = top[r] == -INFINITY ? 0.0f : top[r];
    rows.share[at] = sees && sum[r] != 0 ? 1 / sum[r] : 0.0f;
    rows.base[at] = (x.dlse != nullptr ? x.dlse[at] : 0.0f) - dot;
    if (rows.dentropy != nullptr) {
      rows.dentropy[at] = x.dentropy[at];
      rows.expected[at] = sees ? lse[r] - x.entropy[at] : 0.0f;
    }
  }
}

template <int kWide, class T>
__device__ void store(const Sums<kWide>& sums, float factor, const Rows& to, std::int64_t batch,
                      std::int64_t head, std::int64_t start, std::int64_t first, std::int64_t rows,
                      int first_column, int size) {
  const Lane lane;
  for (int r = 0; r < kSide; ++r) {
    const std::int64_t i = first + lane.row(r);
    if (i >= rows) continue;
    T* row = to.at<T>(batch, head, start + i);
    for (int k = 0; k < kWide; ++k) {
      const int column = first_column + sum_column(lane, k);
      if (column < size) row[column * to.element] = from_float<T>(factor * sums[r][k]);
    }
  }
}

// dq = scale * da k: a block has 64 queries and walks over the keys they see.
template <class T, int kWide>
__device__ void make_dq(const AttentionJob& job, const BackwardTensors& x, const BackwardRows& rows,
                        Unit unit) {
  extern __shared__ char shared[];
  auto& sum_room = *reinterpret_cast<SumRoom<kWide>*>(shared);
  auto& product_room = *reinterpret_cast<ProductRoom*>(shared + sizeof(SumRoom<kWide>));
  const Lane lane;
  const int chunks = (job.head_size + 16 * kWide - 1) / (16 * kWide);
  const int head = unit.head, sequence = unit.sequence;
  const int first_column = static_cast<int>(unit.tile % chunks) * 16 * kWide;
  const std::int64_t first = unit.tile / chunks * kTile;
  const Sequence s = job.sequences[sequence];
  if (first >= s.q_rows) return;
  const Range keys = keys_seen(job, s, first, first + kTile - 1);
  Sums<kWide> sums = {};
  for (std::int64_t j = keys.begin / kTile * kTile; j < keys.end; j += kTile) {
    GradientTile g;
    gradient_tile<T, true>(job, s, {sequence, head, first, j}, x.dout, rows, product_room, g);
    for (int r = 0; r < kSide; ++r) {
      for (int c = 0; c < kSide; ++c) {
        sum_room.weights[lane.column(c)][lane.row(r)] = g.dlogit[r][c];
      }
    }
    const auto k = block_of<T>(job.k, s.k_batch, head / job.group, s.k_start, j, s.k_rows);
    const bool strange = load_values<kWide>(k, first_column, job.head_size, sum_room);
    add_product<kWide>(sum_room, strange, sums);
    __syncthreads();
  }
  store<kWide, T>(sums, job.scale, x.dq, s.q_batch, head, s.q_start, first, s.q_rows, first_column,
                  job.head_size);
}

// dk = scale * da^T q or dv = p^T dout: a block has 64 keys and walks over the rows that see them,
// of every query head that shares the key head.
template <class T, int kWide, bool kKeys>
__device__ void make_dk_or_dv(const AttentionJob& job, const BackwardTensors& x,
                              const BackwardRows& rows, Unit unit) {
  extern __shared__ char shared[];
  auto& sum_room = *reinterpret_cast<SumRoom<kWide>*>(shared);
  auto& product_room = *reinterpret_cast<ProductRoom*>(shared + sizeof(SumRoom<kWide>));
  const Lane lane;
  const int size = kKeys ? job.head_size : job.value_size;
  const int chunks = (size + 16 * kWide - 1) / (16 * kWide);
  const int key_head = unit.head, sequence = unit.sequence;
  const int first_column = static_cast<int>(unit.tile % chunks) * 16 * kWide;
  const std::int64_t first = unit.tile / chunks * kTile;
  const Sequence s = job.sequences[sequence];
  if (first >= s.k_rows) return;
  const Range range = rows_seeing(job, s, first, first + kTile - 1);
  Sums<kWide> sums = {};
  for (int head = key_head * job.group; head < (key_head + 1) * job.group; ++head) {
    for (std::int64_t i = range.begin / kTile * kTile; i < range.end; i += kTile) {
      GradientTile g;
      gradient_tile<T, kKeys>(job, s, {sequence, head, i, first}, x.dout, rows, product_room, g);
      for (int r = 0; r < kSide; ++r) {
        for (int c = 0; c < kSide; ++c) {
          sum_room.weights[lane.row(r)][lane.column(c)] = kKeys ? g.dlogit[r][c] : g.weight[r][c];
        }
      }
      const auto values =
          block_of<T>(kKeys ? job.q : x.dout, s.q_batch, head, s.q_start, i, s.q_rows);
      const bool strange = load_values<kWide>(values, first_column, size, sum_room);
      add_product<kWide>(sum_room, strange, sums);
      __syncthreads();
    }
  }
  store<kWide, T>(sums, kKeys ? job.scale : 1.0f, kKeys ? x.dk : x.dv, s.k_batch, key_head,
                  s.k_start, first, s.k_rows, first_column, size);
}

template <class T, int kWide>
void launch(const AttentionJob& job, const AttentionGrid& grid, const BackwardTensors& x,
            const BackwardRows& rows, cudaStream_t stream) {
  constexpr std::size_t kBytes = sizeof(SumRoom<kWide>) + sizeof(ProductRoom);
  const auto run = [&]<Maker kMake>(unsigned tiles, int size, int heads) {
    allow_shared(reinterpret_cast<const void*>(backward_kernel<kMake>), kBytes);
    const int chunks = (size + 16 * kWide - 1) / (16 * kWide);
    launch_units<kMake>(job, x, rows, {tiles * chunks, heads, grid.sequences}, kBytes, stream);
  };
  const int key_heads = job.heads / job.group;
  run.template operator()<make_dq<T, kWide>>(grid.row_tiles(kTile), job.head_size, job.heads);
  run.template operator()<make_dk_or_dv<T, kWide, true>>(grid.key_tiles(kTile), job.head_size,
                                                         key_heads);
  run.template operator()<make_dk_or_dv<T, kWide, false>>(grid.key_tiles(kTile), job.value_size,
                                                          key_heads);
}

}  // namespace

void prepare_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                      const BackwardTensors& tensors, const BackwardRows& rows,
                      cudaStream_t stream) {
  dispatch_device(dtype, [&]<class T>() {
    const Units units{grid.row_tiles(kTile), job.heads, grid.sequences};
    launch_units<prepare_rows<T>>(job, tensors, rows, units, 0, stream);
  });
  check_launch("attention backward");
}

void general_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                      const BackwardTensors& tensors, const BackwardRows& rows,
                      cudaStream_t stream) {
  dispatch_device(dtype, [&]<class T>() {
    if (std::max(job.head_size, job.value_size) <= 64) {
      launch<T, 4>(job, grid, tensors, rows, stream);
    } else {
      launch<T, 8>(job, grid, tensors, rows, stream);
    }
  });
  check_launch("attention backward");
}

}  // namespace qkv::cuda
