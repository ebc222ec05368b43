// sum and mean over axes.
#include <algorithm>
#include <array>

#include "core/backend.h"
#include "ops/checks.h"
#include "ops/sum_to.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

struct Reduction {
  Shape kept, squeezed;  // of the result, with the axes as 1 and without them
};

Reduction reduction(const char* op, const Tensor& x, const std::vector<int>& axes) {
  std::array<bool, kMaxRank> reduced{};
  for (const int given : axes) {
    const int axis = given < 0 ? given + x.rank() : given;
    check(axis >= 0 && axis < x.rank(), "{}: axis {} is out of range for shape {}", op, given,
          x.shape());
    reduced[axis] = true;
  }
  std::vector<std::int64_t> kept, squeezed;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool gone = axes.empty() || reduced[axis];
    kept.push_back(gone ? 1 : x.size(axis));
    if (!gone) squeezed.push_back(x.size(axis));
  }
  return {Shape(kept), Shape(squeezed)};
}

Tensor with_shape(const Tensor& x, const Shape& shape) {
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return x.view(shape, std::span(strides).first(shape.rank()), 0);
}

// factor * sum: the factor is applied before the one rounding.
Tensor reduce(const char* op, const Tensor& x, const std::vector<int>& axes, bool keep,
              bool is_mean) {
  check_floating(op, "x", x);
  const Reduction shapes = reduction(op, x, axes);
  check(!is_mean || x.numel() > 0, "{}: shape {} has no elements", op, x.shape());
  const double factor =
      is_mean ? static_cast<double>(shapes.kept.numel()) / static_cast<double>(x.numel()) : 1;
  Backend& kernels = backend(x.device());
  Tensor y = Tensor::empty(shapes.kept, {is_mean ? DType::f32 : x.dtype(), x.device()});
  kernels.sum(x, y);
  if (is_mean) {
    kernels.scale(y, factor, y);
    const TapePause pause;
    y = to(y, x.dtype());
  }
  if (!keep) y = with_shape(y, shapes.squeezed);
  return Tape::record(
      op, {x}, y, [shape = x.shape(), kept = shapes.kept, factor](const Tensor& dy) {
        const std::vector<std::int64_t> extents(kept.extents().begin(), kept.extents().end());
        const Tensor one = factor == 1 ? dy : scale(dy, factor);
        return std::vector{contiguous(expand(reshape(one, extents), shape))};
      });
}

}  // namespace

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int lead = x.rank() - shape.rank();
  std::vector<std::int64_t> extents(static_cast<std::size_t>(x.rank()), 1);
  for (int axis = 0; axis < shape.rank(); ++axis) extents[axis + lead] = shape[axis];
  Tensor y = Tensor::empty(Shape(extents), {DType::f32, x.device()});
  backend(x.device()).sum(x, y);
  return with_shape(y, shape);
}

Tensor sum(const Tensor& x, const std::vector<int>& axes, bool keep) {
  return reduce("sum", x, axes, keep, false);
}

Tensor mean(const Tensor& x, const std::vector<int>& axes, bool keep) {
  return reduce("mean", x, axes, keep, true);
}

}  // namespace qkv
