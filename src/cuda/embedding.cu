// Rows of a table, and the sum of gradients into them. That sum is in the order of the positions:
// they are sorted by row first (stably), so that the same inputs give the same bits.
#include <cub/device/device_radix_sort.cuh>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

// An id that is no row cannot be an Error without waiting for the device: it gives NaN. Pack is as
// many elements as are moved at once; width is counted in them.
template <class T, class Pack>
__global__ void embedding_kernel(const std::int64_t* ids, const Pack* table, Pack* y,
                                 std::int64_t count, std::int64_t rows, std::int64_t width) {
  constexpr int kEach = sizeof(Pack) / sizeof(T);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count * width;
       at += step) {
    const std::int64_t position = at / width, id = ids[position];
    if (id >= 0 && id < rows) {
      y[at] = table[id * width + (at - position * width)];
    } else {
      for (int k = 0; k < kEach; ++k) reinterpret_cast<T*>(y + at)[k] = from_float<T>(NAN);
    }
  }
}

// What is sorted: the row of each position, or `rows` where it gets no gradient.
__global__ void keys_kernel(const std::int64_t* ids, std::int64_t count, std::int64_t rows,
                            std::int64_t padding, std::int32_t* keys, std::int32_t* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t id = ids[i];
  keys[i] = static_cast<std::int32_t>(id == padding || id < 0 || id >= rows ? rows : id);
  positions[i] = static_cast<std::int32_t>(i);
}

struct GradientJob {
  const std::int32_t *keys, *positions;  // sorted by key
  std::int64_t count, rows, width;
  float* dtable;
  float* parts;  // [chunks][2][width]: of runs that came into a chunk, and that go on after it
};

constexpr int kRun = 64;  // sorted positions of a chunk

// A chunk of sorted positions by a block: runs of one row that begin and end within it go to the
// table, the others to parts. Such a run may be both the first and the last of a chunk; it is then
// counted as the last of the chunk it begins in and as the first of those it passes.
template <class T>
__global__ void embedding_runs_kernel(GradientJob job, const T* dy) {
  __shared__ std::int32_t keys[kRun + 2], positions[kRun];  // keys: with a neighbour on each side
  const std::int64_t first = std::int64_t{blockIdx.x} * kRun;
  const int count = static_cast<int>(min(std::int64_t{kRun}, job.count - first));
  for (int i = threadIdx.x; i < count + 2; i += blockDim.x) {
    const std::int64_t at = first + i - 1;
    keys[i] = at >= 0 && at < job.count ? job.keys[at] : -1;
    if (i < count) positions[i] = job.positions[first + i];
  }
  __syncthreads();
  for (std::int64_t column = threadIdx.x; column < job.width; column += blockDim.x) {
    float total = 0;
    bool came_in = keys[0] == keys[1];
    for (int i = 0; i < count; ++i) {
      const std::int32_t key = keys[i + 1];
      if (key >= job.rows) break;  // no gradient, and none after it
      total += to_float(dy[positions[i] * job.width + column]);
      const bool goes_on = i + 1 == count && keys[i + 2] == key;
      if (keys[i + 2] == key && !goes_on) continue;
      float* part = job.parts + std::int64_t{blockIdx.x} * 2 * job.width + column;
      if (came_in) {
        part[0] = total;
      } else if (goes_on) {
        part[job.width] = total;
      } else {
        job.dtable[key * job.width + column] += total;
      }
      total = 0;
      came_in = false;
    }
  }
}

// The block of a chunk in which a run begins that goes on after it adds up the whole run.
__global__ void embedding_joins_kernel(GradientJob job) {
  const std::int64_t last = (std::int64_t{blockIdx.x} + 1) * kRun - 1;
  if (last + 1 >= job.count) return;
  const std::int32_t key = job.keys[last];
  if (key >= job.rows || job.keys[last + 1] != key) return;
  const std::int64_t first = last + 1 - kRun;
  if (first > 0 && job.keys[first - 1] == key) return;  // it began before
  const std::int64_t step = 2 * job.width;
  for (std::int64_t column = threadIdx.x; column < job.width; column += blockDim.x) {
    const float* part = job.parts + std::int64_t{blockIdx.x} * step + column;
    float total = part[job.width];
    for (std::int64_t at = last + 1; at < job.count && job.keys[at] == key; at += kRun) {
      part += step;
      total += *part;
    }
    job.dtable[key * job.width + column] += total;
  }
}

int bits_for(std::int64_t value) {
  int bits = 1;
  while (bits < 31 && (std::int64_t{1} << bits) <= value) ++bits;
  return bits;
}

}  // namespace
}  // namespace cuda

void CudaBackend::embedding(const Tensor& ids, const Tensor& table, Tensor& y) {
  const std::int64_t width = table.size(1);
  const auto run = [&]<class T, class Pack>() {
    const std::int64_t packs =
        width * static_cast<std::int64_t>(sizeof(T)) / static_cast<std::int64_t>(sizeof(Pack));
    cuda::embedding_kernel<T, Pack>
        <<<cuda::blocks_for(ids.numel() * packs), cuda::kThreads, 0, stream()>>>(
            cuda::pointer<const std::int64_t>(ids), cuda::pointer<const Pack>(table),
            cuda::pointer<Pack>(y), ids.numel(), table.size(0), packs);
  };
  cuda::dispatch_device(table.dtype(), [&]<class T>() {
    const bool by_pack = width % cuda::Pack16<T>::kCount == 0 && cuda::is_aligned(table.raw()) &&
                         cuda::is_aligned(y.raw());
    if (by_pack) {
      run.template operator()<T, cuda::Pack16<T>>();
    } else {
      run.template operator()<T, T>();
    }
  });
  check_launch("embedding");
}

void CudaBackend::embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                                     Tensor& dtable) {
  const std::int64_t count = ids.numel(), rows = dtable.size(0), width = dtable.size(1);
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (count >= kMost || rows >= kMost - 1) {
    throw Error("embedding: " + std::to_string(count) + " ids of " + std::to_string(rows) +
                " rows are too many for one call");
  }
  const cudaStream_t queue = stream();
  const Tensor memory = scratch<std::int32_t>(4 * count);
  auto* keys = static_cast<std::int32_t*>(memory.raw());
  std::int32_t *sorted = keys + count, *positions = sorted + count, *order = positions + count;
  cuda::keys_kernel<<<cuda::blocks_for(count), cuda::kThreads, 0, queue>>>(
      cuda::pointer<const std::int64_t>(ids), count, rows, padding, keys, positions);
  std::size_t bytes = 0;
  const int items = static_cast<int>(count), bits = cuda::bits_for(rows);
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, positions, order, items,
                                             0, bits, queue),
             "embedding backward");
  const Tensor room = scratch<std::byte>(static_cast<std::int64_t>(bytes));
  check_cuda(cub::DeviceRadixSort::SortPairs(room.raw(), bytes, keys, sorted, positions, order,
                                             items, 0, bits, queue),
             "embedding backward");
  const std::int64_t chunks = (count + cuda::kRun - 1) / cuda::kRun;
  const Tensor parts = scratch<float>(chunks * 2 * width);
  const cuda::GradientJob job{sorted,
                              order,
                              count,
                              rows,
                              width,
                              cuda::pointer<float>(dtable),
                              static_cast<float*>(parts.raw())};
  const unsigned blocks = cuda::blocks_for(chunks, 1);
  cuda::dispatch_device(dy.dtype(), [&]<class T>() {
    cuda::embedding_runs_kernel<<<blocks, cuda::kThreads, 0, queue>>>(job,
                                                                      cuda::pointer<const T>(dy));
  });
  cuda::embedding_joins_kernel<<<blocks, cuda::kThreads, 0, queue>>>(job);
  check_launch("embedding backward");
}

}  // namespace qkv
