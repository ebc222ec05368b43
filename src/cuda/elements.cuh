// Element types on the device, and walks over tensors of any strides. (nvcc cannot read fmt, so
// device code does without core/check.h.)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "qkv/error.h"
#include "qkv/tensor.h"

namespace qkv::cuda {

using device_bf16 = __nv_bfloat16;
using device_f16 = __half;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(device_bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(device_f16 x) { return __half2float(x); }

template <class T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, device_bf16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

// Calls f.template operator()<T>() with the device's type for a floating dtype.
template <class F>
void dispatch_device(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<device_bf16>();
    case DType::f16: return f.template operator()<device_f16>();
    default: throw Error("expected a floating-point dtype, got " + to_string(dtype));
  }
}

template <class T>
T* pointer(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw()) : nullptr;
}

inline constexpr int kThreads = 256;
inline unsigned blocks_for(std::int64_t count, std::int64_t per_block = kThreads) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((count + per_block - 1) / per_block, 1, 1 << 30));
}

// An index over the axes of N tensors of one shape, with as few axes as their strides allow.
template <int N>
struct Walk {
  int rank = 0;
  std::int64_t extents[kMaxRank] = {};
  std::int64_t strides[N][kMaxRank] = {};

  // Where element `index` (row-major) of each tensor lies. Index holds the number of elements:
  // divisions of 32 bits take a fraction of the time of those of 64.
  template <class Index>
  __device__ void offsets(Index index, std::int64_t (&at)[N]) const {
    for (int n = 0; n < N; ++n) at[n] = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      Index i = index;
      if (axis > 0) {
        const auto extent = static_cast<Index>(extents[axis]);
        const Index next = index / extent;
        i = index - next * extent;
        index = next;
      }
      for (int n = 0; n < N; ++n) at[n] += static_cast<std::int64_t>(i) * strides[n][axis];
    }
  }
  // One run of neighbouring elements in every tensor.
  bool is_flat() const {
    if (rank == 0) return true;
    bool flat = rank == 1;
    for (int n = 0; n < N; ++n) flat &= strides[n][0] == 1;
    return flat;
  }
};

template <int N>
Walk<N> make_walk(const Shape& shape, const std::array<const Tensor*, N>& tensors) {
  Walk<N> walk;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = walk.rank > 0;
    for (int n = 0; n < N && joins; ++n) {
      joins = walk.strides[n][walk.rank - 1] == tensors[n]->stride(axis) * shape[axis];
    }
    if (joins) {
      walk.extents[walk.rank - 1] *= shape[axis];
    } else {
      walk.extents[walk.rank++] = shape[axis];
    }
    for (int n = 0; n < N; ++n) walk.strides[n][walk.rank - 1] = tensors[n]->stride(axis);
  }
  return walk;
}

// As many elements as one 16-byte access holds.
template <class T>
struct alignas(16) Pack16 {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};
inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// The sum over a block of kThreads; every thread gets it. `room` holds kThreads / 32 values.
template <class T>
__device__ T block_sum(T value, T* room) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();  // the room may still be read from the last time
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  T total = room[0];
  for (int w = 1; w < kThreads / 32; ++w) total += room[w];
  return total;
}
__device__ inline float block_max(float value, float* room) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  float top = room[0];
  for (int w = 1; w < kThreads / 32; ++w) top = fmaxf(top, room[w]);
  return top;
}

}  // namespace qkv::cuda
