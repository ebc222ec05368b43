// add, subtract, mul with broadcasting; scale.
#include <algorithm>

#include "core/backend.h"
#include "ops/checks.h"
#include "ops/sum_to.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<std::int64_t> extents(static_cast<std::size_t>(rank));
  for (int axis = -1; axis >= -rank; --axis) {
    const std::int64_t m = axis >= -a.rank() ? a[axis] : 1, n = axis >= -b.rank() ? b[axis] : 1;
    check(m == n || m == 1 || n == 1, "{}: {} and {} do not broadcast", op, a, b);
    extents[rank + axis] = m == 1 ? n : m;
  }
  return Shape(extents);
}

// A view with broadcast axes, not recorded: the operator's own gradient sums over them.
Tensor spread(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int lead = shape.rank() - x.rank();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()), 0);
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.size(axis) == shape[axis + lead]) strides[axis + lead] = x.stride(axis);
  }
  return x.view(shape, strides, 0);
}

Tensor compute(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  check(a.defined() && b.defined(), "{}: an argument is undefined", name);
  check(is_floating(a.dtype()) && is_floating(b.dtype()),
        "{}: arguments must be floating point, got {} and {}", name, a.dtype(), b.dtype());
  check(a.device() == b.device(), "{}: arguments are on {} and {}", name, a.device(), b.device());
  const Shape shape = broadcast_shape(name, a.shape(), b.shape());
  Tensor y = Tensor::empty(shape, {a.dtype(), a.device()});
  backend(a.device()).binary(op, spread(a, shape), spread(b, shape), y);
  return y;
}

// Whether the gradient of x is made in f32 although dy may not be: x is f32, or was broadcast and
// sums many terms.
bool is_wide(const Tensor& x, const Shape& result) {
  return x.dtype() == DType::f32 || !(x.shape() == result);
}

// dy as the gradient of an argument of `shape`.
Tensor gradient_of(const Tensor& dy, const Shape& shape, bool wide) {
  const Tensor sums = sum_to(dy, shape);
  return wide ? to(sums, DType::f32) : sums;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor y = compute("add", BinaryOp::add, a, b);
  return Tape::record(
      "add", {a, b}, y,
      [sa = a.shape(), sb = b.shape(), wide_a = is_wide(a, y.shape()),
       wide_b = is_wide(b, y.shape())](const Tensor& dy) {
        return std::vector{gradient_of(dy, sa, wide_a), gradient_of(dy, sb, wide_b)};
      });
}

Tensor subtract(const Tensor& a, const Tensor& b) {
  const Tensor y = compute("subtract", BinaryOp::subtract, a, b);
  return Tape::record(
      "subtract", {a, b}, y,
      [sa = a.shape(), sb = b.shape(), wide_a = is_wide(a, y.shape()),
       wide_b = is_wide(b, y.shape())](const Tensor& dy) {
        return std::vector{gradient_of(dy, sa, wide_a), scale(gradient_of(dy, sb, wide_b), -1)};
      });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  const Tensor y = compute("mul", BinaryOp::mul, a, b);
  return Tape::record("mul", {a, b}, y, [a, b, result = y.shape()](const Tensor& dy) {
    const auto gradient = [&](const Tensor& x, const Tensor& other) {
      return sum_to(mul(is_wide(x, result) ? to(dy, DType::f32) : dy, other), x.shape());
    };
    return std::vector{gradient(a, b), gradient(b, a)};
  });
}

Tensor scale(const Tensor& x, double factor) {
  check_floating("scale", "x", x);
  Tensor y = Tensor::empty(x.shape(), {x.dtype(), x.device()});
  backend(x.device()).scale(x, factor, y);
  return Tape::record("scale", {x}, y,
                      [factor](const Tensor& dy) { return std::vector{scale(dy, factor)}; });
}

}  // namespace qkv
