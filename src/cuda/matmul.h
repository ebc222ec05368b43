// What follows a product, done by a kernel where the product's own epilogue cannot.
#pragma once

#include <cuda_runtime_api.h>

#include "core/op_problems.h"

namespace qkv::cuda {

// p.y = activation(sums + p.bias); sums f32 like y, contiguous, perhaps the memory of y.
void finish_product(const Tensor& sums, const MatmulProblem& p, cudaStream_t stream);

}  // namespace qkv::cuda
