// What the kernels of src/core/backend.h are asked: checked, broadcast, allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/activation.h"
#include "qkv/dtype.h"
#include "qkv/optimizer_rule.h"
#include "qkv/tensor.h"

namespace qkv {

enum class BinaryOp : std::uint8_t { add, subtract, mul };

// One number for each head of x, over all its other axes. Of nothing: 0, -inf and 0.
enum class HeadFigure : std::uint8_t {
  mean,
  largest,  // NaN stays
  norm,     // the root of the sum of squares
};
struct HeadFigures {
  Tensor x;  // [B, H, S, D], any floating dtype, any strides
  HeadFigure figure = HeadFigure::mean;
};

// y = activation(a b + bias). When b is bf16, a and b are multiplied as bf16 and summed in f32;
// else products are f32.
struct MatmulProblem {
  Tensor a;     // [B, M, K], any floating dtype, any strides (0 where an axis is broadcast)
  Tensor b;     // [B, K, N], the same
  Tensor bias;  // [N] contiguous, any floating dtype, or undefined
  Activation activation = Activation::none;
  Tensor before;  // like y: a b + bias, which the activation saw; undefined where nobody asks
  Tensor y;       // [B, M, N], any floating dtype; contiguous, but rows may stand further apart
};

// How rows of K elements become int8.
struct Rounding {
  std::int64_t group = 0;  // elements along K that share a scale; 1 to K
  bool spread = false;     // rows are spread first (core/spread.h)
};

// A weight of int8: values i8 [N, K], scale f32 [N, G]; any strides.
struct Int8Weight {
  Tensor values, scale;
  bool spread = false;  // as in Rounding
};

// A weight [N, K] as a backend likes it; what it is besides is the backend's own.
struct Packed {
  std::int64_t outputs = 0, inputs = 0;  // N, K
  DType dtype = DType::f32;              // of the weight it was made from
  Device device{};
  virtual ~Packed() = default;
};

// y = activation(x W^T + bias) with the precision of MatmulProblem.
struct LinearProblem {
  Tensor x;  // [M, K], any floating dtype, rows contiguous
  const Packed* weight = nullptr;
  Tensor bias;  // as in MatmulProblem
  Activation activation = Activation::none;
  Tensor y;  // [M, N], contiguous, any floating dtype
};

// y = norm(x + residual), over rows of the last axis; everything contiguous.
struct NormProblem {
  Tensor x;            // [rows, D]
  Tensor residual;     // like x, or undefined
  double dropout = 0;  // of x, before the sum, as Backend::dropout does it
  std::uint64_t seed = 0;
  Tensor weight;         // [D] or undefined
  Tensor bias;           // [D] or undefined
  bool centered = true;  // layer norm; false: RMS norm
  float eps = 0, weight_offset = 0;
  Tensor sum;  // x + residual, rounded to the dtype of x, before the norm; undefined without one
  Tensor y;    // like x
  Tensor mean, rstd;  // f32 [rows], or undefined when no gradient will be asked
};
struct NormBackward {
  Tensor x;  // what was normed: the sum where there was a residual
  Tensor weight, mean, rstd;
  bool centered = true;
  float weight_offset = 0;
  double dropout = 0;  // as in NormProblem
  std::uint64_t seed = 0;
  Tensor dy;              // like x, or undefined (zero)
  Tensor dsum;            // what reaches the sum from elsewhere, or undefined
  Tensor dx;              // like x: of the sum, which is that of the residual
  Tensor ddropped;        // like x: of what was dropped from; undefined without dropout
  Tensor dweight, dbias;  // f32 [D], or undefined
};

struct RotaryProblem {
  Tensor x, y;      // [B, H, S, D]; any strides, but the last axis of y is contiguous
  Tensor cos, sin;  // f32 [B or 1, S, R/2], last axis contiguous
  bool interleaved = false;
  bool inverse = false;  // turn back: the gradient
};

struct CrossEntropyProblem {
  Tensor logits;   // [rows, V]; rows may stand further apart
  Tensor targets;  // i64 [rows] contiguous; ignore_index or 0 .. V-1
  std::int64_t ignore_index = -100;
  float label_smoothing = 0, z_loss = 0;
  Tensor lse;    // f32 [rows]
  Tensor loss;   // f32 []: the mean over the targets that count (NaN when none does)
  Tensor count;  // f32 []: of these targets
};
struct CrossEntropyBackward {
  const CrossEntropyProblem* forward = nullptr;
  Tensor dloss;    // f32 []
  Tensor dlogits;  // [rows, V]; rows may stand further apart; may be the logits themselves
};

// An id of each row; core/sampling.h has the arithmetic. Everything contiguous.
struct SampleProblem {
  Tensor logits;  // f32 [rows, V], V <= kMaxChoices
  Tensor draws;   // i64 [rows], in [0, 2^kDrawBits)
  Tensor
      occurred;  // i64 [rows, N]: ids to penalize, or none of [0, V); undefined without a penalty
  double rate = 0;         // log2(e) / temperature; 0: the likeliest
  std::int64_t top_k = 0;  // 0 = all
  double top_p = 1;
  double floor = 0;  // below the likeliest by more than this (which is <= 0) are no candidates
  float penalty = 1;
  Tensor ids;  // i64 [rows]; -1 where the largest logit is not finite
};

// One step of an optimiser; the tensors of a parameter are contiguous and of its shape.
struct OptimizerItem {
  Tensor parameter;         // any floating dtype
  Tensor gradient;          // f32
  Tensor m, v;              // f32, or undefined where the rule has none
  Tensor master;            // f32 copy of a 16-bit parameter, or undefined
  Tensor ema;               // f32, or undefined
  Tensor steps;             // i64 [], raised by one
  double weight_decay = 0;  // times lr: the share of the parameter that goes
};
// g is the gradient, scaled when all of them together have a norm above clip_norm; t the steps.
//   adamw: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, u = (m / (1 - b1^t)) / (sqrt(v / (1 -
//          b2^t)) + eps)
//   lion:  u = sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g
//   sgd:   m = b1 m + g, u = m
// and then w = w (1 - lr decay) - lr u, ema = d ema + (1 - d) w. When the norm is not finite,
// nothing but the norm is written.
struct OptimizerProblem {
  std::vector<OptimizerItem> items;
  OptimizerRule rule = OptimizerRule::adamw;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  double clip_norm = 0;  // 0: gradients as they are
  double ema = 0;
  Tensor norm;  // f32 []: of all gradients, before they are scaled
};

}  // namespace qkv
