// The kernels of attention by features.
#pragma once

#include "core/feature_problem.h"

namespace qkv::cpu {

void keep_triangle(Tensor& x, bool upper);
void running_sum(Tensor& x, Tensor& carry, bool reverse);
void divide_rows(const Tensor& x, const Tensor& by, Tensor& y);
void softmax_features(const FeatureProblem& problem);

}  // namespace qkv::cpu
