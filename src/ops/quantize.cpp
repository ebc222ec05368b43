#include "qkv/quantize.h"

#include <algorithm>

#include "core/backend.h"
#include "core/quantized_group.h"
#include "ops/checks.h"
#include "ops/layout.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

// Any shape as [A, B, S, width], which is what kernels take; no bytes move for up to four axes.
Tensor as_rows(const Tensor& x) {
  Tensor y = x;
  if (x.rank() > 4) y = reshape(x, {-1, x.size(-3), x.size(-2), x.size(-1)});
  std::int64_t extents[4], strides[4];
  for (int axis = 1; axis <= 4; ++axis) {
    extents[4 - axis] = axis <= y.rank() ? y.size(-axis) : 1;
    strides[4 - axis] = axis <= y.rank() ? y.stride(-axis) : 0;
  }
  return y.view(Shape(extents), strides, 0);
}

std::int64_t check_quantized(const char* op, const Quantized& x) {
  check_defined(op, "values", x.values);
  check_defined(op, "scale", x.scale);
  check(x.values.dtype() == DType::i8 && x.values.rank() >= 1, "{}: values must be i8, got {} {}",
        op, x.values.dtype(), x.values.shape());
  const std::int64_t group =
      x.scale.rank() < 1 ? 0 : quantized_group(x.values.size(-1), x.scale.size(-1));
  check(x.scale.dtype() == DType::f32 && group > 0 &&
            x.scale.shape() == with_last(x.values.shape(), x.scale.size(-1)),
        "{}: scale must be f32 with a column per group of values {}, got {} {}", op,
        x.values.shape(), x.scale.dtype(), x.scale.shape());
  return group;
}

}  // namespace

Quantized quantize(const Tensor& x, std::int64_t group, bool spread) {
  check_floating("quantize", "x", x);
  check(x.rank() >= 1, "quantize: x must have an axis, got {}", x.shape());
  check(group == 0 || group == 32 || group == 64 || group == 128,
        "quantize: group must be 0 (a whole row), 32, 64 or 128, got {}", group);
  const TapePause pause;
  const std::int64_t width = x.size(-1);
  const std::int64_t size = group == 0 || group > width ? std::max<std::int64_t>(width, 1) : group;
  const std::int64_t groups = std::max<std::int64_t>((width + size - 1) / size, 1);
  Quantized y{Tensor::empty(x.shape(), {DType::i8, x.device()}),
              Tensor::zeros(with_last(x.shape(), groups), {DType::f32, x.device()}), spread};
  if (x.numel() == 0) return y;
  Tensor values = as_rows(y.values), scale = as_rows(y.scale);
  backend(x.device()).quantize(as_rows(x), {size, spread}, values, scale);
  return y;
}

Tensor dequantize(const Quantized& x, DType dtype) {
  const std::int64_t group = check_quantized("dequantize", x);
  check(is_floating(dtype), "dequantize: to f32, bf16 or f16, not {}", dtype);
  const TapePause pause;
  Tensor y = Tensor::empty(x.values.shape(), {dtype, x.values.device()});
  if (y.numel() == 0) return y;
  Tensor rows = as_rows(y);
  backend(y.device()).dequantize(as_rows(x.values), as_rows(x.scale), {group, x.spread}, rows);
  return y;
}

}  // namespace qkv
