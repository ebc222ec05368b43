// Rows of a table, and the sum of gradients into them. That sum is in the order of the positions:
// they are sorted by row first (stably), so that the same inputs give the same bits.
#include <cub/device/device_radix_sort.cuh>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// An id that is no row cannot be an Error without waiting for the device: it gives NaN.
template <class T>
__global__ void embedding_kernel(const std::int64_t* ids, const T* table, T* y, std::int64_t count,
                                 std::int64_t rows, std::int64_t width) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count * width;
       at += step) {
    const std::int64_t id = ids[at / width];
    y[at] = id >= 0 && id < rows ? table[id * width + at % width] : from_float<T>(NAN);
  }
}

__global__ void positions_kernel(std::int32_t* positions, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) positions[i] = static_cast<std::int32_t>(i);
}

// A block takes the sorted positions of a row from where they begin, if they begin with it.
template <class T>
__global__ void embedding_backward_kernel(const std::int64_t* ids, const std::int32_t* positions,
                                          const T* dy, float* dtable, std::int64_t count,
                                          std::int64_t rows, std::int64_t width,
                                          std::int64_t padding) {
  const std::int64_t first = blockIdx.x;
  const std::int64_t id = ids[first];
  if (id == padding || id < 0 || id >= rows || (first > 0 && ids[first - 1] == id)) return;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float total = 0;
    for (std::int64_t at = first; at < count && ids[at] == id; ++at) {
      total += to_float(dy[positions[at] * width + i]);
    }
    dtable[id * width + i] += total;
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::embedding(const Tensor& ids, const Tensor& table, Tensor& y) {
  cuda::dispatch_device(table.dtype(), [&]<class T>() {
    cuda::embedding_kernel<<<cuda::blocks_for(y.numel()), cuda::kThreads, 0, stream()>>>(
        cuda::pointer<const std::int64_t>(ids), cuda::pointer<const T>(table), cuda::pointer<T>(y),
        ids.numel(), table.size(0), table.size(1));
  });
  check_launch("embedding");
}

void CudaBackend::embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                                     Tensor& dtable) {
  const std::int64_t count = ids.numel();
  if (count >= (std::int64_t{1} << 31)) {
    throw Error("embedding: " + std::to_string(count) + " ids are too many for one call");
  }
  const Tensor sorted_ids = scratch<std::int64_t>(count);
  const Tensor positions = scratch<std::int32_t>(count), sorted = scratch<std::int32_t>(count);
  const auto* keys = cuda::pointer<const std::int64_t>(ids);
  auto* sorted_keys = static_cast<std::int64_t*>(sorted_ids.raw());
  auto* values = static_cast<std::int32_t*>(positions.raw());
  auto* sorted_values = static_cast<std::int32_t*>(sorted.raw());
  cuda::positions_kernel<<<cuda::blocks_for(count), cuda::kThreads, 0, stream()>>>(values, count);
  std::size_t bytes = 0;
  const int items = static_cast<int>(count);
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted_keys, values,
                                             sorted_values, items, 0, 64, stream()),
             "embedding backward");
  const Tensor room = scratch<std::byte>(static_cast<std::int64_t>(bytes));
  check_cuda(cub::DeviceRadixSort::SortPairs(room.raw(), bytes, keys, sorted_keys, values,
                                             sorted_values, items, 0, 64, stream()),
             "embedding backward");
  cuda::dispatch_device(dy.dtype(), [&]<class T>() {
    cuda::embedding_backward_kernel<<<cuda::blocks_for(count, 1), cuda::kThreads, 0, stream()>>>(
        sorted_keys, sorted_values, cuda::pointer<const T>(dy), cuda::pointer<float>(dtable), count,
        dtable.size(0), dtable.size(1), padding);
  });
  check_launch("embedding backward");
}

}  // namespace qkv
