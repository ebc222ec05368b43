// matmul, linear, and linear with a packed weight.
#include <algorithm>

#include "core/backend.h"
#include "core/quantized_group.h"
#include "ops/checks.h"
#include "ops/fold.h"
#include "ops/layout.h"
#include "ops/matmul_f32.h"
#include "ops/sum_to.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"

namespace qkv {
namespace {

void check_bias(const char* op, const Tensor& bias, std::int64_t outputs) {
  if (!bias.defined()) return;
  check_floating(op, "bias", bias);
  check(bias.rank() == 1 && bias.size(0) == outputs, "{}: bias must be [{}], got {}", op, outputs,
        bias.shape());
}

// The leading (batch) axes of two operands, broadcast against each other.
Shape batch_shape(const Tensor& a, const Tensor& b) {
  const int rank = std::max(a.rank(), b.rank()) - 2;
  std::vector<std::int64_t> extents(static_cast<std::size_t>(rank));
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t m = i + 2 <= a.rank() ? a.size(-2 - i) : 1;
    const std::int64_t n = i + 2 <= b.rank() ? b.size(-2 - i) : 1;
    check(m == n || m == 1 || n == 1, "matmul: a {} and b {} do not broadcast", a.shape(),
          b.shape());
    extents[rank - i] = m == 1 ? n : m;
  }
  return Shape(extents);
}

// x as [B, rows, columns]: a view when the batch axes fold into one stride, else a copy.
Tensor as_batch(const Tensor& x, const Shape& batch) {
  std::vector<std::int64_t> extents(batch.extents().begin(), batch.extents().end());
  extents.push_back(x.size(-2));
  extents.push_back(x.size(-1));
  const bool is_shared = x.numel() == x.size(-2) * x.size(-1);
  if (is_shared || batch.rank() <= 1) {
    const std::int64_t step = !is_shared && x.rank() > 2 ? x.stride(-3) : 0;
    const std::int64_t strides[] = {step, x.stride(-2), x.stride(-1)};
    return x.view({batch.numel(), x.size(-2), x.size(-1)}, strides, 0);
  }
  return reshape(expand(x, Shape(extents)), {batch.numel(), x.size(-2), x.size(-1)});
}

Tensor product(const Tensor& a, const Tensor& b, DType dtype) {
  const TapePause pause;  // the caller records what this is part of
  const Shape batch = batch_shape(a, b);
  std::vector<std::int64_t> extents(batch.extents().begin(), batch.extents().end());
  extents.push_back(a.size(-2));
  extents.push_back(b.size(-1));
  Tensor y = Tensor::empty(Shape(extents), {dtype, a.device()});
  MatmulProblem problem;
  problem.a = as_batch(a, batch);
  problem.b = as_batch(b, batch);
  problem.y = reshape(y, {batch.numel(), a.size(-2), b.size(-1)});
  backend(a.device()).matmul(problem);
  return y;
}

// The same, in one product where axes of b lie beside its columns.
Tensor folded_product(const Tensor& a, const Tensor& b, const std::vector<int>& axes, DType dtype) {
  return from_columns(product(a, as_columns(b, axes), dtype), axes, b.shape());
}

// Whether `a` is a matrix that was transposed, so that its gradient had better lie as it does:
// copied element by element into rows it would cost more than the product.
bool is_turned(const Tensor& a) {
  return a.stride(-2) == 1 && a.stride(-1) >= a.size(-2) && a.size(-1) > 1 && a.size(-2) > 1;
}

// d loss / d (a, b) from that of a b. What was broadcast is summed over, and rounded after that.
std::vector<Tensor> matmul_backward(const Tensor& given, const Tensor& a, const Tensor& b) {
  // A product is bf16 where its second factor is: that of the forward was.
  const Tensor dy = b.dtype() == DType::bf16 ? to(given, DType::bf16) : given;
  const Shape batch = batch_shape(a, b);
  const auto dtype = [&](const Tensor& x) {
    const Shape own(x.shape().extents().first(static_cast<std::size_t>(x.rank() - 2)));
    return own.numel() == batch.numel() ? x.dtype() : DType::f32;
  };
  // The sum over axes that share `a` is part of the product: [M, H N] times [H N, K]. To copy b
  // where heads do not lie beside columns costs less than a gradient of `a` for each of them.
  const std::vector<int> shared = shared_axes(a, b);
  const bool turned = shared.empty() && dy.dtype() == b.dtype() && is_turned(a);
  const Tensor da =
      turned ? transpose(product(b, transpose(dy, -1, -2), dtype(a)), -1, -2)
             : product(as_columns(dy, shared), transpose(as_columns(b, shared), -1, -2), dtype(a));
  const Tensor db =
      folded_product(transpose(a, -1, -2), dy, axes_beside_columns(b, shared), dtype(b));
  const std::vector<std::int64_t> extents(a.shape().extents().begin(), a.shape().extents().end());
  return {da.numel() == a.numel() ? reshape(da, extents) : sum_to(da, a.shape()),
          sum_to(db, b.shape())};
}

Tensor rows_of(const Tensor& x) {
  std::int64_t rows = 1;
  for (const std::int64_t extent : x.shape().extents().first(x.rank() - 1)) rows *= extent;
  return reshape(contiguous(x), {rows, x.size(-1)});
}

// The same of a gradient, whose rows may stand further apart.
Tensor rows_apart(const Tensor& x) {
  std::int64_t rows = 1;
  for (const std::int64_t extent : x.shape().extents().first(x.rank() - 1)) rows *= extent;
  const Tensor flat = reshape(x, {rows, x.size(-1)});
  return flat.stride(1) == 1 ? flat : contiguous(flat);
}

// Room for the results of a linear map. Rows of many logits that will be worked on again (a loss,
// two products of its gradient) begin at multiples of 128 bytes: an odd vocabulary would keep every
// kernel from reading more than an element at a time.
Tensor empty_rows(const Shape& shape, const Tensor& x, bool again) {
  constexpr std::int64_t kMany = 1024;
  const TensorOptions like{x.dtype(), x.device()};
  const auto multiple = static_cast<std::int64_t>(128 / size_of(x.dtype()));
  const std::int64_t width = shape[-1], padded = (width + multiple - 1) / multiple * multiple;
  if (!again || width < kMany || padded == width) return Tensor::empty(shape, like);
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()), 1);
  std::int64_t step = padded;
  for (int axis = shape.rank() - 2; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<std::int64_t>(shape[axis], 1);
  }
  return Tensor::empty({step}, like).view(shape, strides, 0);
}

// d loss / d (x, weight, bias) from that of x W^T + bias.
std::vector<Tensor> linear_backward(const Tensor& dz, const Tensor& x, const Tensor& weight,
                                    const Tensor& bias, bool transposed) {
  const Tensor dy = rows_apart(dz);
  const Tensor w = transposed ? transpose(weight, 0, 1) : weight;  // [N, K]
  // A product is bf16 where its second factor is: that of the forward was.
  const auto narrow = [&](const Tensor& t) {
    return weight.dtype() == DType::bf16 ? to(t, DType::bf16) : t;
  };
  const Tensor dx = product(dy, w, x.dtype());
  const Tensor dw = transposed ? product(transpose(x, 0, 1), narrow(dy), DType::f32)
                               : product(transpose(dy, 0, 1), narrow(x), DType::f32);
  // One row is its own sum, and to() then does nothing or widens.
  const Tensor dbias = bias.defined() ? to(sum_to(dy, bias.shape()), DType::f32) : Tensor();
  return {dx, dw, dbias};
}

void check_linear(const Tensor& x, std::int64_t inputs, std::int64_t outputs, Device device) {
  check_floating("linear", "x", x);
  check(x.rank() >= 1 && x.size(-1) == inputs && inputs > 0,
        "linear: the last axis of x {} must match the {} inputs of the weight [{}, {}]", x.shape(),
        inputs, outputs, inputs);
  check(x.device() == device, "linear: x is on {}, the weight on {}", x.device(), device);
}

}  // namespace

namespace {

Tensor multiplied(const Tensor& a, const Tensor& b, DType dtype) {
  check_floating("matmul", "a", a);
  check_floating("matmul", "b", b);
  check(a.rank() >= 2 && b.rank() >= 2 && a.size(-1) == b.size(-2),
        "matmul: a [..., M, K] and b [..., K, N] are needed, got {} and {}", a.shape(), b.shape());
  check(a.device() == b.device(), "matmul: a is on {}, b on {}", a.device(), b.device());
  const Tensor y = folded_product(a, b, axes_beside_columns(b, shared_axes(a, b)), dtype);
  return Tape::record("matmul", {a, b}, y,
                      [a, b](const Tensor& dy) { return matmul_backward(dy, a, b); });
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_floating("matmul", "a", a);
  return multiplied(a, b, a.dtype());
}

Tensor matmul_f32(const Tensor& a, const Tensor& b) { return multiplied(a, b, DType::f32); }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options) {
  check_floating("linear", "weight", weight);
  check(weight.rank() == 2, "linear: weight must be [N, K], got {}", weight.shape());
  const std::int64_t outputs = weight.size(options.transposed ? 1 : 0);
  const std::int64_t inputs = weight.size(options.transposed ? 0 : 1);
  check_linear(x, inputs, outputs, weight.device());
  check_bias("linear", bias, outputs);
  const Activation activation = options.activation;
  const Tensor rows = rows_of(x);
  const Shape shape = with_last(x.shape(), outputs);
  Tensor y = empty_rows(shape, x, Tape::recording() && activation == Activation::none);
  const auto flat = [&](const Tensor& t) {
    const std::int64_t apart = t.rank() > 1 ? t.stride(-2) : outputs;
    return t.view({1, rows.size(0), outputs},
                  std::vector{rows.size(0) * apart, apart, std::int64_t{1}}, 0);
  };
  const auto view = [](const Tensor& m, bool transposed) {
    const std::int64_t strides[] = {0, m.stride(transposed ? 1 : 0), m.stride(transposed ? 0 : 1)};
    return m.view({1, m.size(transposed ? 1 : 0), m.size(transposed ? 0 : 1)}, strides, 0);
  };
  MatmulProblem problem;
  problem.a = view(rows, false);
  problem.b = view(weight, !options.transposed);
  problem.bias = bias.defined() ? contiguous(bias) : bias;
  problem.activation = activation;
  problem.y = flat(y);
  // Backward needs what the activation saw; that a relu saw a positive number is seen in its
  // result.
  Tensor before = activation == Activation::relu ? y : Tensor();
  if (Tape::recording() && activation != Activation::none && activation != Activation::relu) {
    before = Tensor::empty(shape, {x.dtype(), x.device()});
    problem.before = flat(before);
  }
  backend(x.device()).matmul(problem);
  return Tape::record(
      "linear", {rows, weight, bias}, y,
      [rows, weight, bias, before, activation, transposed = options.transposed](const Tensor& dy) {
        if (activation == Activation::none) {
          return linear_backward(dy, rows, weight, bias, transposed);
        }
        Tensor dz = Tensor::empty(before.shape(), {before.dtype(), before.device()});
        backend(dz.device())
            .activate_backward(activation, before, contiguous(to(dy, dz.dtype())), dz);
        return linear_backward(dz, rows, weight, bias, transposed);
      });
}

PackedWeight::PackedWeight(const Tensor& weight, bool transposed) {
  check_floating("PackedWeight", "weight", weight);
  check(weight.rank() == 2, "PackedWeight: weight must be [N, K], got {}", weight.shape());
  packed_ = backend(weight.device()).pack(transposed ? transpose(weight, 0, 1) : weight);
}

PackedWeight::PackedWeight(const Quantized& weight, bool transposed) {
  constexpr std::int64_t kMostInputs = 1 << 17;  // as many products of -128 fit 32 bits
  const auto& [values, scale, spread] = weight;
  check(values.defined() && values.dtype() == DType::i8 && values.rank() == 2,
        "PackedWeight: the weight must be i8 [N, K], got {} {}", values.dtype(), values.shape());
  const TapePause pause;
  const Tensor w = transposed ? transpose(values, 0, 1) : values;
  check(w.size(1) <= kMostInputs, "PackedWeight: an int8 weight has at most {} inputs, got {}",
        kMostInputs, w.size(1));
  check(scale.defined() && scale.dtype() == DType::f32 && scale.rank() == 2,
        "PackedWeight: the scale of an int8 weight must be f32 [N, groups], got {} {}",
        scale.dtype(), scale.shape());
  const Tensor s = transposed ? transpose(scale, 0, 1) : scale;
  check(s.size(0) == w.size(0) && quantized_group(w.size(1), s.size(1)) > 0,
        "PackedWeight: the scale {} does not fit the weight {}", scale.shape(), values.shape());
  packed_ = backend(values.device()).pack_int8({w, s, spread});
}

Tensor linear(const Tensor& x, const PackedWeight& weight, const Tensor& bias,
              Activation activation, std::optional<DType> dtype) {
  check(weight.defined(), "linear: the packed weight is undefined");
  check(!dtype || is_floating(*dtype), "linear: to f32, bf16 or f16, not {}",
        dtype.value_or(DType::f32));
  const Packed& packed = *weight.get();
  check_linear(x, packed.inputs, packed.outputs, packed.device);
  check_bias("linear", bias, packed.outputs);
  const Tensor rows = rows_of(x);
  Tensor y =
      Tensor::empty(with_last(x.shape(), packed.outputs), {dtype.value_or(x.dtype()), x.device()});
  LinearProblem problem;
  problem.x = rows;
  problem.weight = &packed;
  problem.bias = bias.defined() ? contiguous(bias) : bias;
  problem.activation = activation;
  problem.y = rows_of(y);
  if (y.numel() > 0) backend(x.device()).linear(problem);
  return y;
}

}  // namespace qkv
