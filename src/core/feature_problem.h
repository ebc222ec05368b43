// What the kernels of attention by features are asked: checked and allocated by src/ops.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// Positive features whose products stand for exp(scale q . k): exp(x w - half_scale |x|^2 - shift)
// / sqrt(F). The shift is the largest exponent: of the row, or of the group where `top` is defined;
// there it is not below what `top` held, which becomes the new one.
struct FeatureProblem {
  Tensor x;           // [G, S, D] contiguous, any floating dtype
  Tensor directions;  // w: f32 [F, D] contiguous, times the root of the scale
  float half_scale = 0;
  Tensor top;    // f32 [G], or undefined: by row
  Tensor decay;  // f32 [G]: exp(old top - new top), 0 for an old top of -inf; defined with top
  Tensor y;      // [G, S, F] contiguous, dtype of x
};

// dx = (dy y) w - scale x sum(dy y): the shift counts as a constant.
struct FeatureBackward {
  Tensor x, directions;  // as in FeatureProblem
  Tensor y, dy;          // [G, S, F] contiguous, dtype of x
  float scale = 0;
  Tensor dx;  // like x
};

}  // namespace qkv
