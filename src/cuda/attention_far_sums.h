// What the Hopper kernel of the backward pass sums for gradients of what is added by distance, and
// the kernels of those gradients (attention_bias.cu, attention_mma_bias.cuh) put together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace qkv::cuda {

// Sums of ds: two for each [sequence][head][part]. Of a table, of the pairs at a distance of -reach
// or before, at which it adds the same throughout, and of reach or after; of slopes, of -|distance|
// ds of all pairs, and 0.
struct FarSums {
  float* data = nullptr;  // null: there are none
  int parts = 0;
  const std::uint32_t* worthless = nullptr;  // unless this word on the device is 0

  __device__ bool hold() const { return data != nullptr && *worthless == 0; }
};

}  // namespace qkv::cuda
