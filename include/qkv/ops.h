// Operators: free functions on tensors, for any number of threads at once. Each checks its
// arguments, allocates its result, calls one kernel of the tensor's device, and records itself on a
// living Tape (autograd.h).
//
// Floating-point operators take f32, bf16 and f16, compute in f32 and round once, to the dtype of
// their first argument. Gradients of weights, tables and biases are f32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "qkv/activation.h"
#include "qkv/tensor.h"

namespace qkv {

// Views: no bytes move.
Tensor transpose(const Tensor& x, int axis_a, int axis_b);
Tensor permute(const Tensor& x, const std::vector<int>& axes);
Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end);
// A view where the strides allow it, else a copy. One extent may be -1.
Tensor reshape(const Tensor& x, const std::vector<std::int64_t>& extents);
Tensor expand(const Tensor& x, const Shape& shape);

Tensor contiguous(const Tensor& x);
// Floats become whole numbers towards zero: the nearest there is where one is too large, 0 for NaN.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);  // x itself when it is there already
Tensor concat(const std::vector<Tensor>& parts, int axis);
// Views of `sizes` elements along an axis, which together are all of it. Gradients that lie in
// memory as the parts do (those of attention on q, k and v) come back as one without a copy.
std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes);

// Element by element, with broadcasting; b is converted to the dtype of a.
Tensor add(const Tensor& a, const Tensor& b);
Tensor subtract(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& x, double factor);

// Over the named axes (none named: all). `keep` leaves them with extent 1.
Tensor sum(const Tensor& x, const std::vector<int>& axes = {}, bool keep = false);
Tensor mean(const Tensor& x, const std::vector<int>& axes = {}, bool keep = false);

// exp(x - max) / sum along `axis`; a slice that is all -inf gives zeros.
Tensor softmax(const Tensor& x, int axis = -1);

Tensor activate(const Tensor& x, Activation activation);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);
Tensor gelu_tanh(const Tensor& x);
Tensor silu(const Tensor& x);
Tensor tanh(const Tensor& x);
// activation(gate) * up: SwiGLU with silu, GeGLU with gelu.
Tensor gated(const Tensor& gate, const Tensor& up, Activation activation);

// a [..., M, K] times b [..., K, N]; leading axes broadcast. When b is bf16, both are multiplied as
// bf16 and summed in f32 (what the matrix instructions do); else products are f32.
Tensor matmul(const Tensor& a, const Tensor& b);

struct LinearOptions {
  Activation activation = Activation::none;
  bool transposed = false;  // the weight is [in, out], as GPT-2 stores it
};
// activation(x W^T + bias): x [..., K], weight [N, K], bias [N] or undefined. Precision as matmul.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const LinearOptions& options = {});

// A weight arranged once for the matrix instructions of its device, for use many times over. It
// does not follow later changes of the weight, and never changes: threads may share it.
struct Packed;
struct Quantized;  // quantize.h
class PackedWeight {
 public:
  PackedWeight() = default;
  // weight [N, K], or [K, N] when `transposed`.
  explicit PackedWeight(const Tensor& weight, bool transposed = false);
  // The same in int8: products are those of whole numbers, exact on every target, with rows of x
  // rounded to int8 in the same groups (quantize(x, group)).
  explicit PackedWeight(const Quantized& weight, bool transposed = false);
  bool defined() const { return packed_ != nullptr; }
  const Packed* get() const { return packed_.get(); }

 private:
  std::shared_ptr<const Packed> packed_;
};
// The same values as with the weight itself, rounded to `dtype`, or to that of x. Never recorded: a
// tape needs the weight.
Tensor linear(const Tensor& x, const PackedWeight& weight, const Tensor& bias = {},
              Activation activation = Activation::none, std::optional<DType> dtype = {});

// (x - mean) / sqrt(var + eps) * weight + bias over the last axis; weight and bias may be
// undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
// x / sqrt(mean(x^2) + eps) * (weight + weight_offset): Gemma stores weights around 0 and adds 1.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double weight_offset = 0);
// The sum that goes on along the residual stream, and its norm, in one pass over memory. x may be
// dropped from on the way, as dropout() does it.
struct NormedSum {
  Tensor sum, normed;
};
struct Dropout {
  double p = 0;
  std::uint64_t seed = 0;
};
NormedSum add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                         const Tensor& bias, double eps, const Dropout& dropout = {});
NormedSum add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                       double weight_offset = 0, const Dropout& dropout = {});

// Rows of table [V, D] by ids (i32 or i64, any shape): [..., D]. Row `padding` gets no gradient.
Tensor embedding(const Tensor& ids, const Tensor& table, std::int64_t padding = -1);

// Turns pairs of x [B, H, S, D] by angles; cos and sin are f32 [S, R/2] or [B, S, R/2] with R <= D,
// and elements from R on pass. Pairs are (i, i + R/2), or (2i, 2i + 1) when interleaved.
Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved = false);

// Each element is kept with 1 - p and divided by it, or 0; which, depends on (seed, position).
Tensor dropout(const Tensor& x, double p, std::uint64_t seed);

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;  // in [0, 1): that share of the target is spread over all classes
  double z_loss = 0;           // adds z_loss * lse^2, which keeps logits from drifting
};
// The mean over targets that count of -log softmax(logits)[target]: f32, shape []. logits [..., V],
// targets [...] (i32 or i64). Probabilities are never stored: backward has lse and makes them
// again, and where nobody holds the logits any more, their gradient takes their place.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

struct SampleOptions {
  double temperature = 0;  // 0: the likeliest id
  // What may be chosen. top_k cuts first, then top_p, of what is left, then min_p.
  std::int64_t top_k = 0;         // the k likeliest; 0 = all
  double top_p = 1;               // the likeliest that together reach this probability
  double min_p = 0;               // those at least this share of the likeliest
  double repetition_penalty = 1;  // > 1 makes ids that occurred less likely
};
// An id of each row of logits [..., V]: i64 [...], on their device. Where there is a choice,
// `draws` decides (i64 [...], from 0 to 2^53 - 1). `occurred` i64 [..., N] are the ids to penalize,
// each once; those outside [0, V) are passed over. The same logits and draws give the same ids on
// every device. A row whose largest logit is not finite, or that holds NaN, gives -1.
Tensor sample(const Tensor& logits, const Tensor& draws, const SampleOptions& options = {},
              const Tensor& occurred = {});

}  // namespace qkv
