// What every launch of these kernels needs from the host.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "cuda/tile/mask.cuh"
#include "qkv/error.h"

namespace qkv::cuda {

inline int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Bytes of shared memory that a block can be allowed.
inline int most_shared() {
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return most;
}

inline void check_status(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Lets a kernel have more shared memory than it gets unasked.
template <class Kernel>
void allow_shared_bytes(Kernel kernel, int bytes, const char* what) {
  check_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               what);
}

// A side of a window (-1 = unbounded) as the kernels count it.
inline int window_side(std::int64_t keys) {
  return keys < 0 ? kUnbounded : static_cast<int>(std::min<std::int64_t>(keys, kUnbounded));
}

}  // namespace qkv::cuda
