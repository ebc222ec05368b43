// Features and their gradient by one kernel each, for the inputs that models have.
#pragma once

#include <cuda_runtime_api.h>

#include "core/feature_problem.h"

namespace qkv::cuda {

// Whether the kernels below take it: bf16, heads of 32, 64 or 128, whole groups of 32 features, and
// directions that fit the shared memory.
bool features_fit(const Tensor& x, std::int64_t features);

// `next` f32 [G] is room for the largest exponents; undefined by row.
void fused_features(const FeatureProblem& p, const Tensor& next, cudaStream_t stream);
void fused_features_backward(const FeatureBackward& p, cudaStream_t stream);

}  // namespace qkv::cuda
