// What the kernels of the norms share.
#pragma once

#include "cuda/dropping.cuh"
#include "cuda/elements.cuh"

namespace qkv::cuda {

inline constexpr int kNormWarps = kThreads / 32;  // of a block: a row for each at a time

// A weight or bias of any floating dtype, absent = constant.
struct Column {
  const void* values = nullptr;
  DType dtype = DType::f32;
  float constant = 0, offset = 0;

  __device__ float operator[](std::int64_t i) const {
    if (values == nullptr) return constant;
    switch (dtype) {
      case DType::bf16: return offset + to_float(static_cast<const device_bf16*>(values)[i]);
      case DType::f16: return offset + to_float(static_cast<const device_f16*>(values)[i]);
      default: return offset + static_cast<const float*>(values)[i];
    }
  }
};
inline Column column(const Tensor& x, float constant, float offset = 0) {
  if (!x.defined()) return {nullptr, DType::f32, constant, 0};
  return {x.raw(), x.dtype(), 0, offset};
}

struct NormJob {
  Column weight, bias;
  std::int64_t rows = 0, width = 0;
  float eps = 0;
  bool centered = true, drops = false;
  Dropping dropping;
  float *mean = nullptr, *rstd = nullptr;
};

// Rows that a warp holds in registers: 16 bytes at a time, lane after lane, kPacks times.
template <class T, int kPacks>
struct WarpRow {
  static constexpr int kEach = Pack16<T>::kCount, kCount = kPacks * kEach;

  // Of element 0 of pack p; beyond the width there is nothing.
  __device__ static std::int64_t at(int p) { return (p * 32 + threadIdx.x % 32) * kEach; }
  __device__ static void load(const T* row, std::int64_t width, float (&x)[kCount]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const bool inside = at(p) < width;
      Pack16<T> pack;
      if (inside) pack = *reinterpret_cast<const Pack16<T>*>(row + at(p));
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        x[p * kEach + k] = inside ? to_float(pack.values[k]) : 0.0f;
      }
    }
  }
  __device__ static void store(const float (&x)[kCount], std::int64_t width, T* row) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (at(p) >= width) continue;
      Pack16<T> pack;
#pragma unroll
      for (int k = 0; k < kEach; ++k) pack.values[k] = from_float<T>(x[p * kEach + k]);
      *reinterpret_cast<Pack16<T>*>(row + at(p)) = pack;
    }
  }
  __device__ static void load(const Column& column, std::int64_t width, float (&x)[kCount]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        x[p * kEach + k] = at(p) < width ? column[at(p) + k] : 0.0f;
      }
    }
  }
  // x times the factors of the elements from `first` on; `first` is a multiple of 4.
  __device__ static void drop(const Dropping& dropping, std::int64_t first, std::int64_t width,
                              float (&x)[kCount]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (at(p) >= width) continue;
      float factors[kEach];
      dropping.factors(first + at(p), factors);
#pragma unroll
      for (int k = 0; k < kEach; ++k) x[p * kEach + k] = dropped(x[p * kEach + k], factors[k]);
    }
  }
};

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Calls f.template operator()<kPacks>() and returns true where rows of x fit a warp's registers.
template <class T, class F>
bool dispatch_warp_rows(std::int64_t width, bool aligned, F&& f) {
  constexpr int kEach = Pack16<T>::kCount;
  if (!aligned || width % kEach != 0) return false;
  switch ((width + 32 * kEach - 1) / (32 * kEach)) {
    case 1: f.template operator()<1>(); return true;
    case 2: f.template operator()<2>(); return true;
    case 3: f.template operator()<3>(); return true;
    case 4: f.template operator()<4>(); return true;
    default: return false;
  }
}

}  // namespace qkv::cuda
