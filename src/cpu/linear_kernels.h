// The kernels of attention by features.
#pragma once

#include "core/feature_problem.h"

namespace qkv::cpu {

void keep_triangle(const Tensor& x, bool upper, Tensor& y);
void running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y);
void divide_rows(const Tensor& x, const Tensor& by, Tensor& y);
void softmax_features(const FeatureProblem& problem);
void softmax_features_backward(const FeatureBackward& problem);

}  // namespace qkv::cpu
