// Sums over axes, in double; the order of every sum depends on the shapes alone.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// What is kept and what is summed over, each with its own walk through x.
struct SumAxes {
  Walk<1> kept, summed;
  std::int64_t results = 1, terms = 1;
};

Walk<1> part_of(const Tensor& x, const Tensor& y, bool is_summed) {
  Walk<1> walk;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.size(axis) == 1 || (y.size(axis) == 1) != is_summed) continue;
    const bool joins =
        walk.rank > 0 && walk.strides[0][walk.rank - 1] == x.stride(axis) * x.size(axis);
    if (!joins) walk.extents[walk.rank++] = 1;
    walk.extents[walk.rank - 1] *= x.size(axis);
    walk.strides[0][walk.rank - 1] = x.stride(axis);
  }
  return walk;
}

// Terms [chunk * per_chunk, ...) of one result by a block.
template <class T>
__global__ void sum_rows_kernel(const T* x, SumAxes axes, std::int64_t per_chunk, double* sums) {
  __shared__ double room[kThreads / 32];
  const std::int64_t chunks = gridDim.y;
  for (std::int64_t result = blockIdx.x; result < axes.results; result += gridDim.x) {
    std::int64_t base[1];
    axes.kept.offsets(result, base);
    const std::int64_t end = min(axes.terms, (blockIdx.y + 1) * per_chunk);
    double total = 0;
    for (std::int64_t i = blockIdx.y * per_chunk + threadIdx.x; i < end; i += kThreads) {
      std::int64_t at[1];
      axes.summed.offsets(i, at);
      total += to_float(x[base[0] + at[0]]);
    }
    total = block_sum(total, room);
    if (threadIdx.x == 0) sums[result * chunks + blockIdx.y] = total;
  }
}

// Rows so short that a warp sums one, and writes the result itself.
constexpr std::int64_t kShortRow = 2048;

template <class T, class R, bool kByPack>
__global__ void sum_short_rows_kernel(const T* x, SumAxes axes, R* y) {
  constexpr int kEach = kByPack ? Pack16<T>::kCount : 1;
  const std::int64_t result = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (result >= axes.results) return;
  std::int64_t base[1];
  axes.kept.offsets(result, base);
  const T* row = x + base[0];
  const int lane = static_cast<int>(threadIdx.x) % 32, terms = static_cast<int>(axes.terms);
  const std::int64_t step = axes.summed.strides[0][0];
  double total = 0;
#pragma unroll 2
  for (int i = lane * kEach; i < terms; i += 32 * kEach) {
    if constexpr (kByPack) {
      const auto pack = *reinterpret_cast<const Pack16<T>*>(row + i);
      float few = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) few += to_float(pack.values[k]);
      total += few;
    } else {
      total += to_float(row[i * step]);
    }
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, apart);
  }
  if (lane == 0) y[result] = from_float<R>(static_cast<float>(total));
}

// sum_rows_kernel with a thread per result, where neighbouring results lie side by side.
template <class T>
__global__ void sum_columns_kernel(const T* x, SumAxes axes, std::int64_t per_chunk, double* sums) {
  const std::int64_t result = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (result >= axes.results) return;
  std::int64_t base[1];
  axes.kept.offsets(result, base);
  const std::int64_t end = min(axes.terms, (blockIdx.y + 1) * per_chunk);
  double total = 0;
#pragma unroll 4
  for (std::int64_t i = blockIdx.y * per_chunk; i < end; ++i) {
    std::int64_t at[1];
    axes.summed.offsets(i, at);
    total += to_float(x[base[0] + at[0]]);
  }
  sums[result * gridDim.y + blockIdx.y] = total;
}

// Columns of a matrix, 16 bytes of a row at a time: the warps of a block take the rows of a chunk
// in turn. Few terms are summed in f32, the rest in double.
template <class T>
__global__ void sum_matrix_kernel(const T* x, std::int64_t rows, std::int64_t apart,
                                  std::int64_t columns, std::int64_t per_chunk, double* sums) {
  constexpr int kEach = Pack16<T>::kCount, kTerms = 32;
  __shared__ double room[kThreads / 32][32 * kEach];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = (std::int64_t{blockIdx.x} * 32 + lane) * kEach;
  const std::int64_t end = min(rows, (blockIdx.y + 1) * per_chunk);
  double totals[kEach] = {};
  std::int64_t row = blockIdx.y * per_chunk + warp;
  while (row < end && column < columns) {
    float few[kEach] = {};
#pragma unroll 8
    for (int i = 0; i < kTerms && row < end; ++i, row += kThreads / 32) {
      const auto pack = *reinterpret_cast<const Pack16<T>*>(x + row * apart + column);
      for (int k = 0; k < kEach; ++k) few[k] += to_float(pack.values[k]);
    }
    for (int k = 0; k < kEach; ++k) totals[k] += few[k];
  }
  for (int k = 0; k < kEach; ++k) room[warp][lane * kEach + k] = totals[k];
  __syncthreads();
  const std::int64_t first = std::int64_t{blockIdx.x} * 32 * kEach;
  for (int i = threadIdx.x; i < 32 * kEach && first + i < columns; i += kThreads) {
    double total = 0;
    for (const auto& part : room) total += part[i];
    sums[(first + i) * gridDim.y + blockIdx.y] = total;
  }
}

// A warp for each result.
template <class T>
__global__ void add_chunks_kernel(const double* sums, std::int64_t chunks, T* y,
                                  std::int64_t results) {
  const std::int64_t result = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (result >= results) return;
  double total = 0;
  for (std::int64_t c = threadIdx.x % 32; c < chunks; c += 32) total += sums[result * chunks + c];
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (threadIdx.x % 32 == 0) y[result] = from_float<T>(static_cast<float>(total));
}

// Whether x is a matrix whose columns are summed, as its rows are read 16 bytes at a time.
template <class T>
bool is_matrix(const T* x, const SumAxes& axes) {
  constexpr std::int64_t kEach = Pack16<T>::kCount;
  return axes.kept.rank == 1 && axes.kept.strides[0][0] == 1 && axes.summed.rank == 1 &&
         axes.results % kEach == 0 && axes.summed.strides[0][0] % kEach == 0 && is_aligned(x);
}

// Rows of one axis, in such numbers that a warp for each fills the machine.
bool has_short_rows(const SumAxes& axes) {
  constexpr std::int64_t kManyRows = 1024;
  return axes.summed.rank == 1 && axes.terms <= kShortRow && axes.results >= kManyRows;
}

template <class T>
void sum_short_rows(const SumAxes& axes, const T* x, const Tensor& y, cudaStream_t stream) {
  constexpr std::int64_t kEach = Pack16<T>::kCount;
  bool by_pack = axes.summed.strides[0][0] == 1 && axes.terms % kEach == 0 && is_aligned(x);
  for (int axis = 0; axis < axes.kept.rank; ++axis) {
    by_pack &= axes.kept.strides[0][axis] % kEach == 0;
  }
  const unsigned blocks = blocks_for(axes.results, kThreads / 32);
  dispatch_device(y.dtype(), [&]<class R>() {
    auto* to = pointer<R>(y);
    if (by_pack) {
      sum_short_rows_kernel<T, R, true><<<blocks, kThreads, 0, stream>>>(x, axes, to);
    } else {
      sum_short_rows_kernel<T, R, false><<<blocks, kThreads, 0, stream>>>(x, axes, to);
    }
  });
}

}  // namespace
}  // namespace cuda

void CudaBackend::sum(const Tensor& x, Tensor& y) {
  if (y.numel() == 0) return;
  if (x.numel() == 0) return fill(y, 0);
  cuda::SumAxes axes{cuda::part_of(x, y, false), cuda::part_of(x, y, true), y.numel(),
                     x.numel() / y.numel()};
  const auto innermost = [](const cuda::Walk<1>& walk) {
    return walk.rank > 0 ? walk.strides[0][walk.rank - 1] : INT64_MAX;
  };
  const bool by_column = innermost(axes.kept) < innermost(axes.summed);
  if (!by_column && cuda::has_short_rows(axes)) {
    const cudaStream_t queue = stream();
    cuda::dispatch_device(x.dtype(), [&]<class T>() {
      cuda::sum_short_rows(axes, cuda::pointer<const T>(x), y, queue);
    });
    return check_launch("sum");
  }
  // Enough blocks for the machine, few enough that adding up their sums is nothing.
  std::int64_t width = cuda::kThreads, least = 64;  // results of a block, terms of a chunk
  constexpr std::int64_t kMost = 1056;  // blocks: eight for each multiprocessor of an H100
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    if (!by_column) {
      width = 1;
      least = 16 * cuda::kThreads;
    } else if (cuda::is_matrix(cuda::pointer<const T>(x), axes)) {
      width = 32 * cuda::Pack16<T>::kCount;
      least = 128;
    }
  });
  const std::int64_t blocks = (axes.results + width - 1) / width;
  const std::int64_t chunks = std::clamp<std::int64_t>(
      std::min(kMost / blocks, (axes.terms + least - 1) / least), 1, kMost);
  const std::int64_t per_chunk = (axes.terms + chunks - 1) / chunks;
  const Tensor sums = scratch<double>(axes.results * chunks);
  auto* room = static_cast<double*>(sums.raw());
  cuda::dispatch_device(x.dtype(), [&]<class T>() {
    const auto* from = cuda::pointer<const T>(x);
    const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 30)),
                    static_cast<unsigned>(chunks));
    if (by_column && cuda::is_matrix(from, axes)) {
      cuda::sum_matrix_kernel<<<grid, cuda::kThreads, 0, stream()>>>(
          from, axes.terms, axes.summed.strides[0][0], axes.results, per_chunk, room);
    } else if (by_column) {
      cuda::sum_columns_kernel<<<grid, cuda::kThreads, 0, stream()>>>(from, axes, per_chunk, room);
    } else {
      cuda::sum_rows_kernel<<<grid, cuda::kThreads, 0, stream()>>>(from, axes, per_chunk, room);
    }
  });
  cuda::dispatch_device(y.dtype(), [&]<class T>() {
    cuda::add_chunks_kernel<<<cuda::blocks_for(axes.results, 8), cuda::kThreads, 0, stream()>>>(
        room, chunks, cuda::pointer<T>(y), axes.results);
  });
  check_launch("sum");
}

}  // namespace qkv
