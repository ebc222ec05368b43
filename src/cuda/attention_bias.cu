// Gradients of what is added to the scores: a bias tensor, ALiBi slopes, a bucket table, sinks.
// Each block owns what it writes, so sums have one order.
#include "cuda/attention_gradient.cuh"
#include "cuda/attention_mma.h"

namespace qkv::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    tensor_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows, BiasResult to,
                  int sequences) {
  __shared__ ProductRoom room;
  __shared__ float tile[kTile][kPitch];
  const Lane lane;
  const int b0 = static_cast<int>(blockIdx.z) / to.heads,
            h0 = static_cast<int>(blockIdx.z) % to.heads;
  const std::int64_t own_row = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t own_key = std::int64_t{blockIdx.x} * kTile;
  Tile sums = {};
  for (int b = b0; b < sequences; b += to.batch) {
    const Sequence s = job.sequences[b];
    const std::int64_t row_end = to.rows == 1 ? s.q_rows : min(own_row + 1, std::int64_t{s.q_rows});
    const std::int64_t key_end = to.keys == 1 ? s.k_rows : min(own_key + 1, std::int64_t{s.k_rows});
    for (int h = h0; h < job.heads; h += to.heads) {
      for (std::int64_t i = own_row; i < row_end; i += kTile) {
        const Range keys = keys_seen(job, s, i, i + kTile - 1);
        for (std::int64_t j = own_key; j < key_end; j += kTile) {
          if (j >= keys.end || j + kTile <= keys.begin) continue;
          GradientTile g;
          gradient_tile<T, true>(job, s, {b, h, i, j}, x.dout, rows, room, g);
          for (int r = 0; r < kSide; ++r) {
            for (int c = 0; c < kSide; ++c) sums[r][c] += g.dscore[r][c];
          }
        }
      }
    }
  }
  __syncthreads();
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < kSide; ++c) tile[lane.row(r)][lane.column(c)] = sums[r][c];
  }
  __syncthreads();
  const int rows_out = to.rows == 1 ? 1 : kTile, keys_out = to.keys == 1 ? 1 : kTile;
  for (int e = static_cast<int>(threadIdx.x); e < rows_out * keys_out; e += kThreads) {
    const int r = e / keys_out, c = e % keys_out;
    if (own_row + r >= to.rows || own_key + c >= to.keys) continue;
    float total = 0;
    for (int i = r; i < (to.rows == 1 ? kTile : r + 1); ++i) {
      for (int j = c; j < (to.keys == 1 ? kTile : c + 1); ++j) total += tile[i][j];
    }
    to.data[((std::int64_t{b0} * to.heads + h0) * to.rows + own_row + r) * to.keys + own_key + c] =
        total;
  }
}

// Sums of ds over what the rows of a block see, by bucket: partial[sequence][head][tile][bucket].
// A thread has its own column of sums, so nobody waits and the order is fixed. Slopes are one
// bucket in which ds counts -|distance| times.
constexpr int kBucketsAtOnce = 64;
template <class T>
__global__ void __launch_bounds__(kThreads)
    diagonal_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows, int bucket_count,
                    float* partial) {
  extern __shared__ float columns[];  // [bucket][thread]
  __shared__ ProductRoom room;
  const Lane lane;
  const int head = blockIdx.y, sequence = blockIdx.z;
  const int chunks = (bucket_count + kBucketsAtOnce - 1) / kBucketsAtOnce;
  const int tile = static_cast<int>(blockIdx.x) / chunks,
            tiles = static_cast<int>(gridDim.x) / chunks;
  const int first_bucket = static_cast<int>(blockIdx.x) % chunks * kBucketsAtOnce;
  const int own = min(kBucketsAtOnce, bucket_count - first_bucket);
  const std::int64_t first = std::int64_t{tile} * kTile;
  const Sequence s = job.sequences[sequence];
  for (int b = 0; b < own; ++b) columns[b * kThreads + threadIdx.x] = 0;
  const Range keys = keys_seen(job, s, first, first + kTile - 1);
  for (std::int64_t j = keys.begin / kTile * kTile; first < s.q_rows && j < keys.end; j += kTile) {
    GradientTile g;
    gradient_tile<T, true>(job, s, {sequence, head, first, j}, x.dout, rows, room, g);
    for (int r = 0; r < kSide; ++r) {
      for (int c = 0; c < kSide; ++c) {
        if (is_hidden(g.dscore[r][c])) continue;
        const std::int64_t relative = j + lane.column(c) - (first + lane.row(r) + s.offset);
        if (job.slopes != nullptr) {
          const auto distance = static_cast<float>(relative < 0 ? -relative : relative);
          columns[threadIdx.x] -= g.dscore[r][c] * distance;
          continue;
        }
        const int bucket = bucket_of(job, relative) - first_bucket;
        if (bucket >= 0 && bucket < own) {
          columns[bucket * kThreads + threadIdx.x] += g.dscore[r][c];
        }
      }
    }
  }
  __syncthreads();
  float* to = partial + ((std::int64_t{sequence} * job.heads + head) * tiles + tile) * bucket_count;
  for (int b = static_cast<int>(threadIdx.x) / 32; b < own; b += kThreads / 32) {
    float total = 0;
    for (int t = static_cast<int>(threadIdx.x) % 32; t < kThreads; t += 32) {
      total += columns[b * kThreads + t];
    }
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x % 32 == 0) to[first_bucket + b] = total;
  }
}

// Sums of tiles: data[sequence][head][tile][bucket]. Besides, those of pairs far from the diagonal,
// whose buckets are told on the device (null: the first).
struct Partials {
  const float* data;
  int sequences, heads, tiles, buckets;
  FarSums far{};
  const int *before = nullptr, *after = nullptr;
};

// They are summed over tiles, and over sequences where the result has one row for all;
// to[(row, bucket)][head]. A warp has one of them.
__global__ void add_partials_kernel(Partials from, bool by_sequence, float* to) {
  const int index = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  const int results = (by_sequence ? from.sequences : 1) * from.buckets * from.heads;
  if (index >= results) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = index % from.heads, bucket = index / from.heads % from.buckets;
  const int row = index / from.heads / from.buckets;
  const bool far_holds = from.far.hold();
  const bool is_before = bucket == (from.before != nullptr ? *from.before : 0);
  const bool is_after = bucket == (from.after != nullptr ? *from.after : 0);
  double total = 0;
  for (int b = by_sequence ? row : 0; b < (by_sequence ? row + 1 : from.sequences); ++b) {
    const std::int64_t pair = std::int64_t{b} * from.heads + head;
    for (int t = lane; t < from.tiles; t += 32)
      total += from.data[(pair * from.tiles + t) * from.buckets + bucket];
    if (!far_holds || !(is_before || is_after)) continue;
    for (int t = lane; t < from.far.parts; t += 32) {
      const float* const sums = from.far.data + (pair * from.far.parts + t) * 2;
      if (is_before) total += sums[0];
      if (is_after) total += sums[1];
    }
  }
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (lane == 0) to[index] = static_cast<float>(total);
}
void add_partials(const Partials& from, bool by_sequence, const Tensor& to, cudaStream_t stream) {
  const unsigned blocks = blocks_for(to.numel() * 32);
  add_partials_kernel<<<blocks, kThreads, 0, stream>>>(from, by_sequence, pointer<float>(to));
  check_launch("attention backward");
}

// partial[sequence][head][tile]: the sum over kSinkRows rows of p_sink (dlse - r + dentropy (1 +
// expected)).
constexpr int kSinkRows = 4 * kThreads;
__global__ void sinks_kernel(AttentionJob job, BackwardTensors x, BackwardRows rows,
                             float* partial) {
  __shared__ double room[kThreads / 32];
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const Sequence s = job.sequences[sequence];
  const int first = static_cast<int>(blockIdx.x) * kSinkRows;
  double total = 0;
  for (int i = first + static_cast<int>(threadIdx.x); i < min(first + kSinkRows, s.q_rows);
       i += kThreads) {
    const std::int64_t at = job.lse_row(s, head, i);
    if (x.lse[at] == -INFINITY) continue;
    const float weight = expf(job.sinks[head] - rows.top[at]) * rows.share[at];
    float gradient = rows.base[at];
    if (rows.dentropy != nullptr) gradient += rows.dentropy[at] * (1 + rows.expected[at]);
    total += weight * gradient;
  }
  total = block_sum(total, room);
  if (threadIdx.x == 0) {
    partial[(std::int64_t{sequence} * job.heads + head) * gridDim.x + blockIdx.x] =
        static_cast<float>(total);
  }
}

}  // namespace

void bias_backward(CudaBackend& backend, const AttentionJob& job, const AttentionGrid& grid,
                   DType dtype, const BackwardTensors& tensors, const BackwardRows& rows,
                   const AttentionBackward& wanted, const MmaBackward* by_mma) {
  const cudaStream_t stream = backend.stream();
  const auto sequences = static_cast<int>(grid.sequences);
  if (wanted.dbias.defined() && wanted.dbias.numel() > 0) {
    const Tensor& d = wanted.dbias;
    const BiasResult to{pointer<float>(d), static_cast<int>(d.size(0)), static_cast<int>(d.size(1)),
                        d.size(2), d.size(3)};
    // What is summed over rows or keys is not what those kernels have side by side.
    const bool whole = to.rows >= grid.longest_q && to.keys >= grid.longest_k;
    if (by_mma != nullptr && whole) {
      mma_bias_backward(job, grid, dtype, *by_mma, to, stream);
    } else {
      const dim3 blocks(AttentionGrid::tiles(to.keys, kTile), AttentionGrid::tiles(to.rows, kTile),
                        static_cast<unsigned>(to.batch * to.heads));
      dispatch_device(dtype, [&]<class T>() {
        tensor_kernel<T><<<blocks, kThreads, 0, stream>>>(job, tensors, rows, to, sequences);
      });
      check_launch("attention backward");
    }
  }
  const Tensor& diagonal = wanted.dslopes.defined() ? wanted.dslopes : wanted.dtable;
  if (diagonal.defined()) {
    const int buckets = wanted.dslopes.defined() ? 1 : job.bucket_count;
    const auto tiles = static_cast<int>(grid.row_tiles(kTile));
    const int chunks = (buckets + kBucketsAtOnce - 1) / kBucketsAtOnce;
    const Tensor partial =
        backend.scratch<float>(std::int64_t{sequences} * job.heads * tiles * buckets);
    auto* sums = static_cast<float*>(partial.raw());
    Partials partials{sums, sequences, job.heads, tiles, buckets};
    if (by_mma != nullptr && buckets <= kMostMmaBuckets) {
      static_assert(kTile == 64);
      partials.far = by_mma->far;
      if (job.buckets != nullptr) {
        partials.before = job.buckets, partials.after = job.buckets + 2 * job.bucket_reach;
      }
      mma_diagonal_backward(job, grid, dtype, *by_mma, buckets, sums, stream);
    } else {
      const std::size_t bytes =
          sizeof(float) * kThreads * static_cast<std::size_t>(std::min(buckets, kBucketsAtOnce));
      const dim3 blocks(static_cast<unsigned>(tiles * chunks), static_cast<unsigned>(job.heads),
                        grid.sequences);
      dispatch_device(dtype, [&]<class T>() {
        allow_shared(reinterpret_cast<const void*>(diagonal_kernel<T>), bytes);
        diagonal_kernel<T><<<blocks, kThreads, bytes, stream>>>(job, tensors, rows, buckets, sums);
      });
    }
    const bool by_sequence = wanted.dslopes.defined() && wanted.dslopes.size(0) > 1;
    add_partials(partials, by_sequence, diagonal, stream);
  }
  if (wanted.dsinks.defined()) {
    const unsigned tiles = grid.row_tiles(kSinkRows);
    const Tensor partial = backend.scratch<float>(std::int64_t{sequences} * job.heads * tiles);
    auto* const sums = static_cast<float*>(partial.raw());
    const dim3 blocks(tiles, static_cast<unsigned>(job.heads), grid.sequences);
    sinks_kernel<<<blocks, kThreads, 0, stream>>>(job, tensors, rows, sums);
    add_partials({sums, sequences, job.heads, static_cast<int>(tiles), 1}, false, wanted.dsinks,
                 stream);
  }
}

}  // namespace qkv::cuda
