// layer_norm, rms_norm, and both with the residual sum fused in.
#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

struct Norm {
  const char* name;
  Tensor weight, bias;
  double eps;
  bool centered;
  double weight_offset;
  Dropout dropout{};
};

void check_norm(const Norm& norm, const Tensor& x, const Tensor& residual) {
  check_floating(norm.name, "x", x);
  check(x.rank() >= 1 && x.size(-1) > 0, "{}: x {} has no last axis to norm", norm.name, x.shape());
  check(norm.eps >= 0, "{}: eps must not be negative, got {}", norm.name, norm.eps);
  const auto check_vector = [&](const char* name, const Tensor& p) {
    check(!p.defined() || (p.rank() == 1 && p.size(0) == x.size(-1) && is_floating(p.dtype())),
          "{}: {} must be floating point [{}] to fit x {}, got {} {}", norm.name, name, x.size(-1),
          x.shape(), p.dtype(), p.shape());
  };
  check(norm.dropout.p >= 0 && norm.dropout.p < 1, "{}: dropout must be in [0, 1), got {}",
        norm.name, norm.dropout.p);
  check_vector("weight", norm.weight);
  check_vector("bias", norm.bias);
  check(!residual.defined() || (residual.shape() == x.shape() && residual.dtype() == x.dtype()),
        "{}: residual {} {} must match x {} {}", norm.name, residual.dtype(), residual.shape(),
        x.dtype(), x.shape());
}

NormedSum compute(const Norm& norm, const Tensor& x, const Tensor& residual) {
  check_norm(norm, x, residual);
  const TensorOptions like{x.dtype(), x.device()};
  const std::int64_t rows = x.numel() / x.size(-1);
  NormProblem problem;
  problem.x = contiguous(x);
  problem.residual = residual.defined() ? contiguous(residual) : residual;
  problem.weight = norm.weight.defined() ? contiguous(norm.weight) : norm.weight;
  problem.bias = norm.bias.defined() ? contiguous(norm.bias) : norm.bias;
  problem.dropout = norm.dropout.p;
  problem.seed = norm.dropout.seed;
  problem.centered = norm.centered;
  problem.eps = static_cast<float>(norm.eps);
  problem.weight_offset = static_cast<float>(norm.weight_offset);
  problem.y = Tensor::empty(x.shape(), like);
  if (residual.defined()) problem.sum = Tensor::empty(x.shape(), like);
  if (Tape::recording()) {
    if (norm.centered) problem.mean = Tensor::empty({rows}, {DType::f32, x.device()});
    problem.rstd = Tensor::empty({rows}, {DType::f32, x.device()});
  }
  if (x.numel() > 0) backend(x.device()).norm(problem);
  if (!Tape::recording()) return {problem.sum, problem.y};

  NormBackward backward;
  backward.x = residual.defined() ? problem.sum : problem.x;
  backward.weight = problem.weight;
  backward.mean = problem.mean;
  backward.rstd = problem.rstd;
  backward.centered = norm.centered;
  backward.weight_offset = problem.weight_offset;
  backward.dropout = problem.dropout;
  backward.seed = problem.seed;
  const bool has_bias = norm.bias.defined();
  Tape::record_all(
      norm.name, {problem.x, problem.residual, problem.weight, problem.bias},
      {problem.y, problem.sum}, [backward, has_bias](std::span<const Tensor> dout) {
        NormBackward b = backward;
        const TensorOptions same{b.x.dtype(), b.x.device()};
        const TensorOptions f32{DType::f32, b.x.device()};
        const Shape width{b.x.size(-1)};
        b.dy = dout[0].defined() ? contiguous(to(dout[0], b.x.dtype()))
                                 : Tensor::zeros(b.x.shape(), same);
        if (dout[1].defined()) b.dsum = contiguous(to(dout[1], b.x.dtype()));
        b.dx = Tensor::empty(b.x.shape(), same);
        if (b.dropout > 0) b.ddropped = Tensor::empty(b.x.shape(), same);
        if (b.weight.defined()) b.dweight = Tensor::zeros(width, f32);
        if (has_bias) b.dbias = Tensor::zeros(width, f32);
        if (b.x.numel() > 0) backend(b.x.device()).norm_backward(b);
        return std::vector{b.dropout > 0 ? b.ddropped : b.dx, b.dx, b.dweight, b.dbias};
      });
  return {problem.sum, problem.y};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return compute({"layer_norm", weight, bias, eps, true, 0}, x, {}).normed;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double weight_offset) {
  return compute({"rms_norm", weight, {}, eps, false, weight_offset}, x, {}).normed;
}

NormedSum add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                         const Tensor& bias, double eps, const Dropout& dropout) {
  check(residual.defined(), "add_layer_norm: residual is undefined");
  return compute({"add_layer_norm", weight, bias, eps, true, 0, dropout}, x, residual);
}

NormedSum add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                       double weight_offset, const Dropout& dropout) {
  check(residual.defined(), "add_rms_norm: residual is undefined");
  return compute({"add_rms_norm", weight, {}, eps, false, weight_offset, dropout}, x, residual);
}

}  // namespace qkv
