// Gradients of the norms. Where a row fits into the registers of a warp, one pass over x and dy
// gives dx and the sums of dweight and dbias: a warp walks its share of the rows, which depends on
// the shapes alone, and the shares are added up in order.
#include "cuda/cuda_backend.h"
#include "cuda/norm.cuh"

namespace qkv {
namespace cuda {
namespace {

constexpr std::int64_t kMostBlocks = 264;  // two for each multiprocessor of an H100

template <class T>
struct BackwardRows {
  const T *x, *dy, *dsum;  // dsum may be null
  T *dx, *ddropped;        // ddropped may be null
};

// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dsum, with g = dy weight.
// sums[block][2][width] gets dweight and dbias of the rows of a block, unless it is null.
template <class T, int kPacks>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_warp_kernel(NormJob job, BackwardRows<T> rows, float* sums) {
  using Row = WarpRow<T, kPacks>;
  extern __shared__ float room[];  // [kNormWarps][width]
  const std::int64_t width = job.width;
  const int warp = threadIdx.x / 32;
  float weight[Row::kCount], dweight[Row::kCount] = {}, dbias[Row::kCount] = {};
  Row::load(job.weight, width, weight);
  const std::int64_t step = std::int64_t{gridDim.x} * kNormWarps;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kNormWarps + warp; row < job.rows;
       row += step) {
    const std::int64_t at = row * width;
    const float mean = job.mean != nullptr ? job.mean[row] : 0, rstd = job.rstd[row];
    float xhat[Row::kCount], d[Row::kCount];
    Row::load(rows.x + at, width, xhat);
    Row::load(rows.dy + at, width, d);
    float total = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) {
      xhat[i] = (xhat[i] - mean) * rstd;
      dweight[i] += d[i] * xhat[i];  // d is 0 beyond the width
      dbias[i] += d[i];
      d[i] *= weight[i];
      total += d[i];
      dot += d[i] * xhat[i];
    }
    const float count = static_cast<float>(width);
    total = job.centered ? warp_sum(total) / count : 0;
    dot = warp_sum(dot) / count;
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) d[i] = rstd * (d[i] - total - xhat[i] * dot);
    if (rows.dsum != nullptr) {
      Row::load(rows.dsum + at, width, xhat);
#pragma unroll
      for (int i = 0; i < Row::kCount; ++i) d[i] += xhat[i];
    }
    Row::store(d, width, rows.dx + at);
    if (rows.ddropped == nullptr) continue;
#pragma unroll
    for (float& value : d) value = to_float(from_float<T>(value));
    Row::drop(job.dropping, at, width, d);
    Row::store(d, width, rows.ddropped + at);
  }
  if (sums == nullptr) return;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < Row::kEach; ++k) {
        const std::int64_t i = Row::at(p) + k;
        if (i < width) room[warp * width + i] = (which == 0 ? dweight : dbias)[p * Row::kEach + k];
      }
    }
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
      float all = 0;
      for (int w = 0; w < kNormWarps; ++w) all += room[w * width + i];
      sums[(std::int64_t{blockIdx.x} * 2 + which) * width + i] = all;
    }
  }
}

template <class T>
__global__ void norm_backward_block_kernel(NormJob job, BackwardRows<T> rows) {
  __shared__ float room[kNormWarps];
  for (std::int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const std::int64_t at = row * job.width;
    const float mean = job.mean != nullptr ? job.mean[row] : 0, rstd = job.rstd[row];
    float total = 0, dot = 0;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float g = to_float(rows.dy[at + i]) * job.weight[i];
      total += g;
      dot += g * (to_float(rows.x[at + i]) - mean) * rstd;
    }
    const float count = static_cast<float>(job.width);
    total = job.centered ? block_sum(total, room) / count : 0;
    dot = block_sum(dot, room) / count;
    for (std::int64_t i = threadIdx.x; i < job.width; i += kThreads) {
      const float g = to_float(rows.dy[at + i]) * job.weight[i];
      const float xhat = (to_float(rows.x[at + i]) - mean) * rstd;
      const float more = rows.dsum != nullptr ? to_float(rows.dsum[at + i]) : 0;
      const T dx = from_float<T>(rstd * (g - total - xhat * dot) + more);
      rows.dx[at + i] = dx;
      if (rows.ddropped == nullptr) continue;
      rows.ddropped[at + i] = from_float<T>(dropped(to_float(dx), job.dropping.factor_of(at + i)));
    }
  }
}

// Columns of dweight and dbias over a chunk of rows: sums[chunk][2][width].
template <class T>
__global__ void norm_parameters_kernel(NormJob job, const T* x, const T* dy,
                                       std::int64_t rows_per_chunk, float* sums) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= job.width) return;
  const std::int64_t begin = blockIdx.y * rows_per_chunk;
  const std::int64_t end = min(job.rows, begin + rows_per_chunk);
  float dweight = 0, dbias = 0;
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    const float mean = job.mean != nullptr ? job.mean[row] : 0;
    const float d = to_float(dy[row * job.width + i]);
    dweight += d * (to_float(x[row * job.width + i]) - mean) * job.rstd[row];
    dbias += d;
  }
  sums[(std::int64_t{blockIdx.y} * 2) * job.width + i] = dweight;
  sums[(std::int64_t{blockIdx.y} * 2 + 1) * job.width + i] = dbias;
}

// A warp for 32 columns of both, its block's warps for parts of the chunks.
__global__ void add_parameters_kernel(const float* sums, std::int64_t chunks, std::int64_t width,
                                      float* dweight, float* dbias) {
  __shared__ double room[kNormWarps][2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t i = std::int64_t{blockIdx.x} * 32 + lane;
  double w = 0, b = 0;
  for (std::int64_t c = warp; c < chunks && i < width; c += kNormWarps) {
    w += sums[2 * c * width + i];
    b += sums[(2 * c + 1) * width + i];
  }
  room[warp][0][lane] = w;
  room[warp][1][lane] = b;
  __syncthreads();
  if (warp > 1 || i >= width) return;
  double total = 0;
  for (const auto& part : room) total += part[warp][lane];
  float* to = warp == 0 ? dweight : dbias;
  if (to != nullptr) to[i] = static_cast<float>(total);
}

}  // namespace
}  // namespace cuda

void CudaBackend::norm_backward(const NormBackward& p) {
  cuda::NormJob job;
  job.weight = cuda::column(p.weight, 1, p.weight_offset);
  job.width = p.x.size(-1);
  job.rows = p.x.numel() / job.width;
  job.centered = p.centered;
  if (p.ddropped.defined()) job.dropping = cuda::Dropping(p.dropout, p.seed);
  job.mean = p.centered ? cuda::pointer<float>(p.mean) : nullptr;
  job.rstd = cuda::pointer<float>(p.rstd);
  const cudaStream_t queue = stream();
  const bool has_sums = p.dweight.defined() || p.dbias.defined();
  const std::int64_t blocks =
      std::clamp<std::int64_t>(job.rows / (4 * cuda::kNormWarps), 1, cuda::kMostBlocks);
  const std::int64_t columns = (job.width + cuda::kThreads - 1) / cuda::kThreads;
  const std::int64_t chunks =
      std::clamp<std::int64_t>(std::min(job.rows / 16, 512 / columns), 1, 512);
  const Tensor sums = scratch<float>(has_sums ? std::max(blocks, chunks) * 2 * job.width : 0);
  float* room = has_sums ? static_cast<float*>(sums.raw()) : nullptr;
  const auto add_up = [&](std::int64_t parts) {
    if (!has_sums) return;
    cuda::add_parameters_kernel<<<cuda::blocks_for(job.width, 32), cuda::kThreads, 0, queue>>>(
        room, parts, job.width, cuda::pointer<float>(p.dweight), cuda::pointer<float>(p.dbias));
  };
  cuda::dispatch_device(p.x.dtype(), [&]<class T>() {
    const cuda::BackwardRows<T> rows{cuda::pointer<const T>(p.x), cuda::pointer<const T>(p.dy),
                                     cuda::pointer<const T>(p.dsum), cuda::pointer<T>(p.dx),
                                     cuda::pointer<T>(p.ddropped)};
    const bool aligned = cuda::is_aligned(rows.x) && cuda::is_aligned(rows.dy) &&
                         cuda::is_aligned(rows.dsum) && cuda::is_aligned(rows.dx) &&
                         cuda::is_aligned(rows.ddropped);
    const auto bytes = static_cast<unsigned>(cuda::kNormWarps * job.width * sizeof(float));
    const bool done = cuda::dispatch_warp_rows<T>(job.width, aligned, [&]<int kPacks>() {
      cuda::norm_backward_warp_kernel<T, kPacks>
          <<<static_cast<unsigned>(blocks), cuda::kThreads, has_sums ? bytes : 0, queue>>>(
              job, rows, room);
    });
    if (done) return add_up(blocks);
    cuda::norm_backward_block_kernel<<<cuda::blocks_for(job.rows, 1), cuda::kThreads, 0, queue>>>(
        job, rows);
    if (!has_sums) return;
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(chunks));
    cuda::norm_parameters_kernel<<<grid, cuda::kThreads, 0, queue>>>(
        job, rows.x, rows.dy, (job.rows + chunks - 1) / chunks, room);
    add_up(chunks);
  });
  check_launch("norm backward");
}

}  // namespace qkv
