// Means, maxima and norms of the heads of many tensors: two launches for all of them together.
// Blocks take chunks of the rows of one head; then a warp puts the chunks of each head together.
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

constexpr std::int64_t kChunkElements = 65536;  // of a block, about

struct FigureItem {
  const void* x;
  std::int64_t batch, head, row, element;  // strides
  std::int64_t rows, length;               // of a head in all, and in each sequence
  std::int64_t per_chunk, chunks;          // rows of a chunk, chunks of a head
  std::int64_t first_block, first_result;  // chunks * heads blocks, heads results
  int width, heads;                        // D, H
  int lanes;                               // threads side by side in a row, a power of two
  HeadFigure figure;
  DType dtype;
  bool is_even;  // all rows of a head are equally far apart
  bool by_pack;  // rows of squares are read 16 bytes at a time
};

// The item whose blocks (or results) `index` is one of.
__device__ const FigureItem& item_of(const FigureItem* items, int count,
                                     std::int64_t FigureItem::*first, std::int64_t index) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (items[middle].*first <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return items[low];
}

__device__ double of_nothing(HeadFigure figure) {
  return figure == HeadFigure::largest ? -INFINITY : 0.0;
}
// NaN stays.
__device__ double joined(HeadFigure figure, double a, double b) {
  if (figure != HeadFigure::largest) return a + b;
  return a > b || isnan(a) ? a : b;
}
__device__ double over_warp(HeadFigure figure, double x) {
  for (int step = 16; step > 0; step /= 2) {
    x = joined(figure, x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}

// The rows of a chunk that a thread takes, every kThreads / lanes-th of them, from one to the next.
template <class T>
struct RowsOfThread {
  const T* place;
  int left;                 // rows, this one included
  int at, length;           // of the sequence this row is in
  int rows_on;              // what `at` grows by
  std::int64_t step, back;  // of `place`: to the next row, and where a sequence ends besides

  __device__ RowsOfThread(const FigureItem& item, const T* x, std::int64_t chunk) {
    const int apart = kThreads / item.lanes;
    const std::int64_t first = chunk * item.per_chunk + threadIdx.x / item.lanes;
    const std::int64_t end = min(item.rows, (chunk + 1) * item.per_chunk);
    left = first < end ? static_cast<int>(end - first + apart - 1) / apart : 0;
    if (item.is_even) {  // never at the end of a sequence
      place = x + first * item.row;
      at = rows_on = 0;
      length = 1;
      step = apart * item.row;
      back = 0;
      return;
    }
    const std::int64_t sequence = first / item.length;
    length = static_cast<int>(item.length);
    at = static_cast<int>(first - sequence * item.length);
    place = x + sequence * item.batch + at * item.row;
    rows_on = apart % length;
    step = apart / length * item.batch + rows_on * item.row;
    back = item.batch - length * item.row;
  }
  __device__ void next() {
    --left;
    place += step;
    at += rows_on;
    if (at >= length) {
      at -= length;
      place += back;
    }
  }
};

// Squares of packs: four are on their way at once. Those of a pack are summed in f32.
template <class T>
__device__ double squares_of(const FigureItem& item, const T* x, std::int64_t chunk) {
  constexpr int kEach = Pack16<T>::kCount, kAhead = 4;
  const int width = item.width, lanes = item.lanes;
  double total = 0;
  for (int c = static_cast<int>(threadIdx.x) % lanes * kEach; c < width; c += lanes * kEach) {
    RowsOfThread<T> rows(item, x + c, chunk);
    while (rows.left > 0) {
      uint4 words[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (rows.left > 0) words[k] = __ldg(reinterpret_cast<const uint4*>(rows.place));
        rows.next();
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const auto& pack = reinterpret_cast<const Pack16<T>&>(words[k]);
        float few = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float value = to_float(pack.values[i]);
          few = fmaf(value, value, few);
        }
        total += few;
      }
    }
  }
  return total;
}

template <class T>
__device__ double figure_of(const FigureItem& item, std::int64_t head, std::int64_t chunk) {
  const T* x = static_cast<const T*>(item.x) + head * item.head;
  if (item.by_pack) return squares_of(item, x, chunk);
  const HeadFigure figure = item.figure;
  const int width = item.width, lanes = item.lanes;
  double total = of_nothing(figure);
  for (int c = static_cast<int>(threadIdx.x) % lanes; c < width; c += lanes) {
    for (RowsOfThread<T> rows(item, x + c * item.element, chunk); rows.left > 0; rows.next()) {
      const double value = to_float(*rows.place);
      total = joined(figure, total, figure == HeadFigure::norm ? value * value : value);
    }
  }
  return total;
}

// Blocks side by side have heads side by side, which mostly lie so too.
__global__ void __launch_bounds__(kThreads, 4)
    head_chunks_kernel(const FigureItem* items, int count, double* parts) {
  __shared__ double room[kThreads / 32];
  const FigureItem& item = item_of(items, count, &FigureItem::first_block, blockIdx.x);
  const std::int64_t index = blockIdx.x - item.first_block;
  const std::int64_t chunk = index / item.heads, head = index - chunk * item.heads;
  double total = 0;
  switch (item.dtype) {
    case DType::bf16: total = figure_of<device_bf16>(item, head, chunk); break;
    case DType::f16: total = figure_of<device_f16>(item, head, chunk); break;
    default: total = figure_of<float>(item, head, chunk);
  }
  total = over_warp(item.figure, total);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) total = joined(item.figure, total, room[w]);
  parts[item.first_block + head * item.chunks + chunk] = total;
}

// A warp for each result.
__global__ void head_results_kernel(const FigureItem* items, int count, const double* parts,
                                    float* y, std::int64_t results) {
  const std::int64_t result = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (result >= results) return;
  const FigureItem& item = item_of(items, count, &FigureItem::first_result, result);
  const double* mine = parts + item.first_block + (result - item.first_result) * item.chunks;
  double total = of_nothing(item.figure);
  for (std::int64_t c = threadIdx.x % 32; c < item.chunks; c += 32) {
    total = joined(item.figure, total, mine[c]);
  }
  total = over_warp(item.figure, total);
  if (threadIdx.x % 32 != 0) return;
  const double elements = static_cast<double>(item.rows) * item.width;
  if (item.figure == HeadFigure::norm) total = sqrt(total);
  if (item.figure == HeadFigure::mean && elements > 0) total /= elements;
  y[result] = static_cast<float>(total);
}

FigureItem item_for(const HeadFigures& wanted) {
  const Tensor& x = wanted.x;
  FigureItem item{};
  item.x = x.raw();
  item.batch = x.stride(0);
  item.head = x.stride(1);
  item.row = x.stride(2);
  item.element = x.stride(3);
  item.rows = x.numel() == 0 ? 0 : x.size(0) * x.size(2);
  item.length = std::max<std::int64_t>(1, x.size(2));
  if (x.size(2) == 1) item.row = item.batch;
  item.is_even = x.size(0) == 1 || item.batch == item.row * x.size(2);
  item.width = static_cast<int>(x.size(3));
  item.heads = static_cast<int>(x.size(1));
  item.figure = wanted.figure;
  item.dtype = x.dtype();
  const auto each = static_cast<int>(16 / size_of(x.dtype()));
  item.by_pack = wanted.figure == HeadFigure::norm && item.element == 1 && item.width % each == 0 &&
                 item.batch % each == 0 && item.head % each == 0 && item.row % each == 0 &&
                 is_aligned(item.x);
  const int across = item.by_pack ? item.width / each : item.width;
  item.lanes = 1;
  while (item.lanes < across && item.lanes < 32) item.lanes *= 2;
  item.per_chunk =
      std::max<std::int64_t>(kThreads / item.lanes, kChunkElements / std::max(1, item.width));
  item.chunks = (item.rows + item.per_chunk - 1) / item.per_chunk;
  return item;
}

}  // namespace
}  // namespace cuda

void CudaBackend::head_figures(std::span<const HeadFigures> wanted, Tensor& y) {
  if (y.numel() == 0) return;
  std::vector<cuda::FigureItem> items;
  std::int64_t blocks = 0, results = 0;
  for (const HeadFigures& one : wanted) {
    if (one.x.size(1) == 0) continue;
    items.push_back(cuda::item_for(one));
    items.back().first_block = blocks;
    items.back().first_result = results;
    blocks += items.back().chunks * items.back().heads;
    results += items.back().heads;
  }
  const cudaStream_t queue = stream();
  const Tensor there = upload(std::as_bytes(std::span(items)));
  const auto* all = static_cast<const cuda::FigureItem*>(there.raw());
  const auto count = static_cast<int>(items.size());
  const Tensor parts = scratch<double>(blocks);
  auto* room = static_cast<double*>(parts.raw());
  if (blocks > 0) {
    cuda::head_chunks_kernel<<<static_cast<unsigned>(blocks), cuda::kThreads, 0, queue>>>(
        all, count, room);
  }
  cuda::head_results_kernel<<<cuda::blocks_for(results, cuda::kThreads / 32), cuda::kThreads, 0,
                              queue>>>(all, count, room, cuda::pointer<float>(y), results);
  check_launch("head_figures");
}

}  // namespace qkv
