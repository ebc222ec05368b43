// fill, and copy between tensors of any strides, dtypes and devices.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

template <class T>
__global__ void fill_kernel(T* x, std::int64_t count, T value) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    x[i] = value;
  }
}

// Bits of one size moved; nothing is converted.
template <class Bits, class Index>
__global__ void move_kernel(const Bits* from, Bits* to, Walk<2> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[2];
    walk.offsets(static_cast<Index>(i), at);
    to[at[1]] = from[at[0]];
  }
}

template <class From, class To>
__global__ void convert_flat_kernel(const From* from, To* to, std::int64_t count) {
  constexpr int kEach = 4;
  const std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kEach;
  struct alignas(kEach * sizeof(From)) In {
    From values[kEach];
  };
  struct alignas(kEach * sizeof(To)) Out {
    To values[kEach];
  };
  if (i + kEach <= count) {
    const In in = *reinterpret_cast<const In*>(from + i);
    Out out;
    for (int k = 0; k < kEach; ++k) out.values[k] = from_float<To>(to_float(in.values[k]));
    *reinterpret_cast<Out*>(to + i) = out;
  } else {
    for (std::int64_t k = i; k < count; ++k) to[k] = from_float<To>(to_float(from[k]));
  }
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, Walk<2> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[2];
    walk.offsets(i, at);
    to[at[1]] = from_float<To>(to_float(from[at[0]]));
  }
}

// Conversions that no fast path has: an element is a float or an integer, decided as it goes.
struct Element {
  float real = 0;
  std::int64_t whole = 0;
  bool is_real = false;
};
__device__ Element load_any(const void* from, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::f32: return {static_cast<const float*>(from)[at], 0, true};
    case DType::bf16: return {to_float(static_cast<const device_bf16*>(from)[at]), 0, true};
    case DType::f16: return {to_float(static_cast<const device_f16*>(from)[at]), 0, true};
    case DType::i32: return {0, static_cast<const std::int32_t*>(from)[at]};
    case DType::i64: return {0, static_cast<const std::int64_t*>(from)[at]};
    case DType::i8: return {0, static_cast<const std::int8_t*>(from)[at]};
    case DType::u8: return {0, static_cast<const std::uint8_t*>(from)[at]};
    default: return {0, static_cast<const bool*>(from)[at] ? 1 : 0};
  }
}
__device__ void store_any(void* to, DType dtype, std::int64_t at, const Element& x) {
  const float real = x.is_real ? x.real : static_cast<float>(x.whole);
  const std::int64_t whole = x.is_real ? static_cast<std::int64_t>(x.real) : x.whole;
  switch (dtype) {
    case DType::f32: static_cast<float*>(to)[at] = real; break;
    case DType::bf16: static_cast<device_bf16*>(to)[at] = from_float<device_bf16>(real); break;
    case DType::f16: static_cast<device_f16*>(to)[at] = from_float<device_f16>(real); break;
    case DType::i32: static_cast<std::int32_t*>(to)[at] = static_cast<std::int32_t>(whole); break;
    case DType::i64: static_cast<std::int64_t*>(to)[at] = whole; break;
    case DType::i8: static_cast<std::int8_t*>(to)[at] = static_cast<std::int8_t>(whole); break;
    case DType::u8: static_cast<std::uint8_t*>(to)[at] = static_cast<std::uint8_t>(whole); break;
    default: static_cast<bool*>(to)[at] = x.is_real ? x.real != 0 : x.whole != 0; break;
  }
}
__global__ void convert_any_kernel(const void* from, DType from_dtype, void* to, DType to_dtype,
                                   Walk<2> walk, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::int64_t at[2];
    walk.offsets(i, at);
    store_any(to, to_dtype, at[1], load_any(from, from_dtype, at[0]));
  }
}

// Elements that lie side by side in both tensors, taken together: runs of up to 16 bytes, into
// which rows divide without rest and at whose multiples they begin. The walk becomes one over runs.
// Returns the bytes of a run, which may be those of one element.
std::size_t take_runs(const Tensor& from, const Tensor& to, Walk<2>& walk) {
  const std::size_t item = size_of(from.dtype());
  const int last = walk.rank - 1;
  if (walk.rank == 0 || walk.strides[0][last] != 1 || walk.strides[1][last] != 1) return item;
  const auto fits = [&](std::size_t bytes) {
    const auto each = static_cast<std::int64_t>(bytes / item);
    bool does = walk.extents[last] % each == 0;
    for (int n = 0; n < 2; ++n) {
      const void* data = (n == 0 ? from : to).raw();
      does = does && reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
      for (int axis = 0; axis < last; ++axis) does = does && walk.strides[n][axis] % each == 0;
    }
    return does;
  };
  std::size_t bytes = 16;
  while (bytes > item && !fits(bytes)) bytes /= 2;
  if (bytes <= item) return item;
  const auto each = static_cast<std::int64_t>(bytes / item);
  walk.extents[last] /= each;
  for (int n = 0; n < 2; ++n) {
    for (int axis = 0; axis < last; ++axis) walk.strides[n][axis] /= each;
  }
  if (last > 0 && walk.extents[last] == 1) --walk.rank;  // rows of one run
  return bytes;
}

template <class Bits>
void move(const Tensor& from, Tensor& to, const Walk<2>& walk, cudaStream_t stream) {
  const auto bytes = from.numel() * static_cast<std::int64_t>(size_of(from.dtype()));
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(Bits));
  const auto* x = static_cast<const Bits*>(from.raw());
  auto* y = static_cast<Bits*>(to.raw());
  if (count <= UINT32_MAX) {
    move_kernel<Bits, std::uint32_t><<<blocks_for(count), kThreads, 0, stream>>>(x, y, walk, count);
  } else {
    move_kernel<Bits, std::int64_t><<<blocks_for(count), kThreads, 0, stream>>>(x, y, walk, count);
  }
}

void copy_bits(const Tensor& from, Tensor& to, Walk<2> walk, cudaStream_t stream) {
  if (walk.is_flat()) {
    const std::size_t bytes = static_cast<std::size_t>(from.numel()) * size_of(from.dtype());
    check_cuda(cudaMemcpyAsync(to.raw(), from.raw(), bytes, cudaMemcpyDeviceToDevice, stream),
               "copy");
    return;
  }
  switch (take_runs(from, to, walk)) {
    case 1: return move<std::uint8_t>(from, to, walk, stream);
    case 2: return move<std::uint16_t>(from, to, walk, stream);
    case 4: return move<std::uint32_t>(from, to, walk, stream);
    case 8: return move<std::uint64_t>(from, to, walk, stream);
    default: return move<uint4>(from, to, walk, stream);
  }
}

void copy_on_device(const Tensor& from, Tensor& to, cudaStream_t stream) {
  const std::int64_t count = from.numel();
  const Walk<2> walk = make_walk<2>(from.shape(), {&from, &to});
  if (from.dtype() == to.dtype()) {
    copy_bits(from, to, walk, stream);
  } else if (is_floating(from.dtype()) && is_floating(to.dtype())) {
    dispatch_device(from.dtype(), [&]<class From>() {
      dispatch_device(to.dtype(), [&]<class To>() {
        const auto* x = pointer<const From>(from);
        auto* y = pointer<To>(to);
        if (walk.is_flat() && is_aligned(x) && is_aligned(y)) {
          convert_flat_kernel<<<blocks_for(count, 4 * kThreads), kThreads, 0, stream>>>(x, y,
                                                                                        count);
        } else {
          convert_kernel<<<blocks_for(count), kThreads, 0, stream>>>(x, y, walk, count);
        }
      });
    });
  } else {
    convert_any_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
        from.raw(), from.dtype(), to.raw(), to.dtype(), walk, count);
  }
  check_launch("copy");
}

}  // namespace
}  // namespace cuda

void CudaBackend::fill(Tensor& x, double value) {
  const std::int64_t count = x.numel();
  if (count == 0) return;
  const cudaStream_t queue = stream();
  if (value == 0 && !std::signbit(value)) {
    check_cuda(
        cudaMemsetAsync(x.raw(), 0, static_cast<std::size_t>(count) * size_of(x.dtype()), queue),
        "fill");
    return;
  }
  const auto run = [&]<class T>(T element) {
    cuda::fill_kernel<<<cuda::blocks_for(count), cuda::kThreads, 0, queue>>>(
        static_cast<T*>(x.raw()), count, element);
  };
  switch (x.dtype()) {
    case DType::f32: run(static_cast<float>(value)); break;
    case DType::bf16: run(bf16(static_cast<float>(value)).bits); break;
    case DType::f16: run(f16(static_cast<float>(value)).bits); break;
    case DType::i32: run(static_cast<std::int32_t>(value)); break;
    case DType::i64: run(static_cast<std::int64_t>(value)); break;
    case DType::i8: run(static_cast<std::int8_t>(value)); break;
    case DType::u8: run(static_cast<std::uint8_t>(value)); break;
    case DType::boolean: run(static_cast<std::uint8_t>(value != 0)); break;
  }
  check_launch("fill");
}

void CudaBackend::copy(const Tensor& from, Tensor& to) {
  if (from.numel() == 0) return;
  const cudaStream_t queue = stream();
  if (from.device() == to.device()) return cuda::copy_on_device(from, to, queue);
  // Across devices the bytes travel as one run; what else is to be done is done where they are.
  if (!from.is_contiguous()) {
    Tensor dense = Tensor::empty(from.shape(), {from.dtype(), from.device()});
    backend(from.device()).copy(from, dense);
    return copy(dense, to);
  }
  if (!to.is_contiguous() || from.dtype() != to.dtype()) {
    Tensor dense = Tensor::empty(from.shape(), {from.dtype(), to.device()});
    copy(from, dense);
    return backend(to.device()).copy(dense, to);
  }
  const std::size_t bytes = static_cast<std::size_t>(from.numel()) * size_of(from.dtype());
  if (from.device() == kCpu) return send(to.raw(), from.raw(), bytes);
  check_cuda(cudaMemcpyAsync(to.raw(), from.raw(), bytes, cudaMemcpyDefault, queue), "copy");
  // Bytes for the CPU are read as soon as this returns.
  if (to.device() == kCpu) check_cuda(cudaStreamSynchronize(queue), "copy");
}

}  // namespace qkv
