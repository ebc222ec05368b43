// Operators that rearrange: transpose, permute, slice, reshape, expand; contiguous, to, concat.
#include <algorithm>

#include "core/backend.h"
#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

int wrap_axis(const char* op, const Tensor& x, int axis) {
  const int wrapped = axis < 0 ? axis + x.rank() : axis;
  check(wrapped >= 0 && wrapped < x.rank(), "{}: axis {} is out of range for shape {}", op, axis,
        x.shape());
  return wrapped;
}

std::vector<std::int64_t> strides_of(const Tensor& x) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(x.rank()));
  for (int axis = 0; axis < x.rank(); ++axis) strides[axis] = x.stride(axis);
  return strides;
}

Tensor copy_as(const Tensor& x, DType dtype) {
  Tensor y = Tensor::empty(x.shape(), {dtype, x.device()});
  backend(x.device()).copy(x, y);
  return y;
}

}  // namespace

Tensor permute(const Tensor& x, const std::vector<int>& axes) {
  check(axes.size() == static_cast<std::size_t>(x.rank()),
        "permute: shape {} needs {} axes, got {}", x.shape(), x.rank(), axes.size());
  std::vector<std::int64_t> extents, strides;
  std::vector<bool> seen(axes.size());
  for (const int given : axes) {
    const int axis = wrap_axis("permute", x, given);
    check(!seen[axis], "permute: axis {} is named twice", given);
    seen[axis] = true;
    extents.push_back(x.size(axis));
    strides.push_back(x.stride(axis));
  }
  return x.view(Shape(extents), strides, 0);
}

Tensor transpose(const Tensor& x, int axis_a, int axis_b) {
  std::vector<int> axes(static_cast<std::size_t>(x.rank()));
  for (int axis = 0; axis < x.rank(); ++axis) axes[axis] = axis;
  std::swap(axes[wrap_axis("transpose", x, axis_a)], axes[wrap_axis("transpose", x, axis_b)]);
  return permute(x, axes);
}

Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end) {
  const int at = wrap_axis("slice", x, axis);
  check(0 <= begin && begin <= end && end <= x.size(at),
        "slice: [{}, {}) is not within axis {} of shape {}", begin, end, axis, x.shape());
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents[at] = end - begin;
  return x.view(Shape(extents), strides_of(x), begin * x.stride(at));
}

Tensor reshape(const Tensor& x, const std::vector<std::int64_t>& extents) {
  std::vector<std::int64_t> wanted = extents;
  const auto unknown = std::find(wanted.begin(), wanted.end(), -1);
  if (unknown != wanted.end()) {
    check(std::count(wanted.begin(), wanted.end(), -1) == 1,
          "reshape: at most one extent may be -1");
    *unknown = 1;
    const std::int64_t known = Shape(wanted).numel();  // Shape refuses what overflows
    check(known > 0, "reshape: an extent of -1 beside one of 0 could be anything");
    *unknown = x.numel() / known;
  }
  const Shape shape{std::span<const std::int64_t>(wanted)};
  check(shape.numel() == x.numel(), "reshape: {} has {} elements, {} has {}", x.shape(), x.numel(),
        shape, shape.numel());
  const Tensor source = contiguous(x);
  std::vector<std::int64_t> strides(wanted.size());
  std::int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<std::int64_t>(shape[axis], 1);
  }
  return source.view(shape, strides, 0);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  const int lead = shape.rank() - x.rank();
  check(lead >= 0, "expand: {} has more axes than {}", x.shape(), shape);
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()), 0);
  for (int axis = 0; axis < x.rank(); ++axis) {
    const std::int64_t have = x.size(axis), want = shape[axis + lead];
    check(have == want || have == 1, "expand: {} does not broadcast to {}", x.shape(), shape);
    if (have == want) strides[axis + lead] = x.stride(axis);
  }
  return x.view(shape, strides, 0);
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : copy_as(x, x.dtype()); }

Tensor to(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : copy_as(x, dtype); }

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  check(!parts.empty(), "concat: needs at least one tensor");
  const Tensor& first = parts.front();
  const int at = wrap_axis("concat", first, axis);
  std::vector<std::int64_t> extents(first.shape().extents().begin(), first.shape().extents().end());
  extents[at] = 0;
  for (const Tensor& part : parts) {
    check(part.rank() == first.rank() && part.dtype() == first.dtype() &&
              part.device() == first.device(),
          "concat: {} {} does not match {} {}", part.shape(), part.dtype(), first.shape(),
          first.dtype());
    for (int i = 0; i < first.rank(); ++i) {
      check(i == at || part.size(i) == first.size(i), "concat: {} does not match {} off axis {}",
            part.shape(), first.shape(), at);
    }
    extents[at] += part.size(at);
  }
  Tensor y = Tensor::empty(Shape(extents), {first.dtype(), first.device()});
  std::int64_t begin = 0;
  for (const Tensor& part : parts) {
    Tensor target = slice(y, at, begin, begin + part.size(at));
    backend(y.device()).copy(part, target);
    begin += part.size(at);
  }
  return y;
}

}  // namespace qkv
