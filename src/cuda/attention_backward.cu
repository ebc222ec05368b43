// Attention backward on any GPU, for every option of the contract, in f32: a kernel per result,
// each block with results of its own, so that every sum has one order and nothing is S x S.
#include "cuda/attention_gradient.cuh"

namespace qkv::cuda {
namespace {

// Behind a faster kernel that has served the call, there is nothing left to do.
__device__ bool is_served(const AttentionJob& job) {
  return job.only_if != nullptr && *job.only_if == 0;
}

// f32 lse holds log(sum) well only while it is small: beyond, rows find maximum and sum again.
constexpr float kExactLse = 14;

// Rows of 64 queries: how p is made again, and dlse - do . out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows) {
  if (is_served(job)) return;
  __shared__ ProductRoom room;
  const Lane lane;
  const int head = blockIdx.y, sequence = blockIdx.z;
  const Sequence s = job.sequences[sequence];
  const std::int64_t first = std::int64_t{blockIdx.x} * kTile;
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
__global__ void __launch_bounds__(kThreads)
    queries_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows) {
  if (is_served(job)) return;
  extern __shared__ char shared[];
  auto& sum_room = *reinterpret_cast<SumRoom<kWide>*>(shared);
  auto& product_room = *reinterpret_cast<ProductRoom*>(shared + sizeof(SumRoom<kWide>));
  const Lane lane;
  const int chunks = (job.head_size + 16 * kWide - 1) / (16 * kWide);
  const int head = blockIdx.y, sequence = blockIdx.z;
  const int first_column = static_cast<int>(blockIdx.x) % chunks * 16 * kWide;
  const std::int64_t first = std::int64_t{blockIdx.x} / chunks * kTile;
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
__global__ void __launch_bounds__(kThreads)
    keys_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows) {
  if (is_served(job)) return;
  extern __shared__ char shared[];
  auto& sum_room = *reinterpret_cast<SumRoom<kWide>*>(shared);
  auto& product_room = *reinterpret_cast<ProductRoom*>(shared + sizeof(SumRoom<kWide>));
  const Lane lane;
  const int size = kKeys ? job.head_size : job.value_size;
  const int chunks = (size + 16 * kWide - 1) / (16 * kWide);
  const int key_head = blockIdx.y, sequence = blockIdx.z;
  const int first_column = static_cast<int>(blockIdx.x) % chunks * 16 * kWide;
  const std::int64_t first = std::int64_t{blockIdx.x} / chunks * kTile;
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
  const auto run = [&](auto* kernel, unsigned tiles, int size, int heads) {
    allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
    const auto chunks = static_cast<unsigned>((size + 16 * kWide - 1) / (16 * kWide));
    const dim3 blocks(tiles * chunks, static_cast<unsigned>(heads), grid.sequences);
    kernel<<<blocks, kThreads, kBytes, stream>>>(job, x, rows);
  };
  const int key_heads = job.heads / job.group;
  run(queries_kernel<T, kWide>, grid.row_tiles(kTile), job.head_size, job.heads);
  run(keys_kernel<T, kWide, true>, grid.key_tiles(kTile), job.head_size, key_heads);
  run(keys_kernel<T, kWide, false>, grid.key_tiles(kTile), job.value_size, key_heads);
}

}  // namespace

void prepare_backward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                      const BackwardTensors& tensors, const BackwardRows& rows,
                      cudaStream_t stream) {
  const dim3 blocks(grid.row_tiles(kTile), static_cast<unsigned>(job.heads), grid.sequences);
  dispatch_device(dtype, [&]<class T>() {
    prepare_kernel<T><<<blocks, kThreads, 0, stream>>>(job, tensors, rows);
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
