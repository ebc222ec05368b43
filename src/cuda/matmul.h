// What follows a product, done by a kernel where the product's own epilogue cannot.
#pragma once

#include <cuda_runtime_api.h>

#include "core/op_problems.h"

namespace qkv::cuda {

// y = activation(sums + bias); sums f32 [rows, N] contiguous, y like it, perhaps the same memory.
void finish_product(const Tensor& sums, const Tensor& bias, Activation activation, Tensor& y,
                    cudaStream_t stream);

}  // namespace qkv::cuda
