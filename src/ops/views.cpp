// Operators that rearrange: transpose, permute, slice, reshape, expand; contiguous, to, concat.
// Gradients travel the same way back.
#include <algorithm>
#include <array>

#include "core/backend.h"
#include "ops/checks.h"
#include "ops/layout.h"
#include "ops/sum_to.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

int wrap_axis(const char* op, const Tensor& x, int axis) {
  check_defined(op, "x", x);
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

std::vector<std::int64_t> extents_of(const Tensor& x) {
  return {x.shape().extents().begin(), x.shape().extents().end()};
}

// The strides under which x has another shape of as many elements; false when there are none.
// Neighbouring axes that lie in memory as one may be cut anywhere; a cut cannot reach across
// others.
bool strides_for(const Tensor& x, const Shape& shape, std::array<std::int64_t, kMaxRank>& strides) {
  const bool is_empty = x.numel() == 0;
  int axis = x.rank() - 1, to = shape.rank() - 1;
  std::int64_t row_major = 1;
  for (int i = to; i >= 0 && is_empty; --i) {
    strides[i] = row_major;
    row_major *= std::max<std::int64_t>(shape[i], 1);
  }
  if (is_empty) return true;
  while (to >= 0) {
    while (axis >= 0 && x.size(axis) == 1) --axis;
    // The largest block of axes from here on that lies as one, and its innermost stride.
    std::int64_t block = axis >= 0 ? x.size(axis) : 1, step = axis >= 0 ? x.stride(axis) : 1;
    const std::int64_t inner = step;
    for (--axis; axis >= 0; --axis) {
      if (x.size(axis) == 1) continue;
      if (x.stride(axis) != block * inner) break;
      block *= x.size(axis);
    }
    for (; to >= 0 && block % shape[to] == 0; --to) {
      strides[to] = step;
      step *= shape[to];
      block /= shape[to];
    }
    if (block != 1) return false;
  }
  return true;
}

Tensor copy_as(const Tensor& x, DType dtype) {
  Tensor y = Tensor::empty(x.shape(), {dtype, x.device()});
  backend(x.device()).copy(x, y);
  return y;
}

// The same without moving elements past one another.
Tensor convert(const Tensor& x, DType dtype) {
  Tensor y = empty_in_layout(x, x.shape(), dtype);
  backend(x.device()).copy(x, y);
  return y;
}

}  // namespace

Tensor permute(const Tensor& x, const std::vector<int>& axes) {
  check_defined("permute", "x", x);
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
  std::vector<int> back(axes.size());
  for (int axis = 0; axis < x.rank(); ++axis) back[wrap_axis("permute", x, axes[axis])] = axis;
  return Tape::record("permute", {x}, x.view(Shape(extents), strides, 0),
                      [back](const Tensor& dy) { return std::vector{permute(dy, back)}; });
}

Tensor transpose(const Tensor& x, int axis_a, int axis_b) {
  const int a = wrap_axis("transpose", x, axis_a), b = wrap_axis("transpose", x, axis_b);
  std::vector<int> axes(static_cast<std::size_t>(x.rank()));
  for (int axis = 0; axis < x.rank(); ++axis) axes[axis] = axis;
  std::swap(axes[a], axes[b]);
  return permute(x, axes);
}

Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end) {
  const int at = wrap_axis("slice", x, axis);
  check(0 <= begin && begin <= end && end <= x.size(at),
        "slice: [{}, {}) is not within axis {} of shape {}", begin, end, axis, x.shape());
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents[at] = end - begin;
  const Shape shape(extents);
  // Nothing of nothing begins where there is no memory.
  const std::int64_t first = shape.numel() > 0 ? begin * x.stride(at) : 0;
  return Tape::record("slice", {x}, x.view(shape, strides_of(x), first),
                      [whole = x.shape(), at, begin, end](const Tensor& dy) {
                        Tensor dx = Tensor::zeros(whole, {dy.dtype(), dy.device()});
                        Tensor part = slice(dx, at, begin, end);
                        backend(dy.device()).copy(dy, part);
                        return std::vector{dx};
                      });
}

Tensor reshape(const Tensor& x, const std::vector<std::int64_t>& extents) {
  check_defined("reshape", "x", x);
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
  std::array<std::int64_t, kMaxRank> strides{};
  const bool is_view = strides_for(x, shape, strides);
  const Tensor source = is_view ? x : contiguous(x);
  if (!is_view) strides_for(source, shape, strides);
  return Tape::record(
      "reshape", {source}, source.view(shape, std::span(strides).first(wanted.size()), 0),
      [before = extents_of(source)](const Tensor& dy) { return std::vector{reshape(dy, before)}; });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", "x", x);
  const int lead = shape.rank() - x.rank();
  check(lead >= 0, "expand: {} has more axes than {}", x.shape(), shape);
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()), 0);
  for (int axis = 0; axis < x.rank(); ++axis) {
    const std::int64_t have = x.size(axis), want = shape[axis + lead];
    check(have == want || have == 1, "expand: {} does not broadcast to {}", x.shape(), shape);
    if (have == want) strides[axis + lead] = x.stride(axis);
  }
  return Tape::record(
      "expand", {x}, x.view(shape, strides, 0),
      [before = x.shape()](const Tensor& dy) { return std::vector{sum_to(dy, before)}; });
}

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", "x", x);
  if (x.is_contiguous()) return x;
  return Tape::record("contiguous", {x}, copy_as(x, x.dtype()),
                      [](const Tensor& dy) { return std::vector{dy}; });
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", "x", x);
  if (x.dtype() == dtype) return x;
  return Tape::record("to", {x}, convert(x, dtype), [before = x.dtype()](const Tensor& dy) {
    return std::vector{is_floating(before) ? to(dy, before) : Tensor()};
  });
}

Tensor to(const Tensor& x, Device device) {
  check_defined("to", "x", x);
  if (x.device() == device) return x;
  Tensor y = Tensor::empty(x.shape(), {x.dtype(), device});
  // The CPU does not know the others; they know it.
  if (x.numel() > 0) backend(device == kCpu ? x.device() : device).copy(x, y);
  return Tape::record("to", {x}, y, [before = x.device()](const Tensor& dy) {
    return std::vector{to(dy, before)};
  });
}

namespace {

// The tensor whose consecutive slices along an axis the parts are, if their memory is such.
Tensor joined(std::span<const Tensor> parts, int axis, const Shape& whole) {
  const Tensor& first = parts.front();
  if (!first.defined()) return {};
  std::int64_t from = 0;
  for (const Tensor& part : parts) {
    if (!part.defined() || part.dtype() != first.dtype() || part.device() != first.device()) {
      return {};
    }
    const auto item = static_cast<std::int64_t>(size_of(first.dtype()));
    if (part.numel() == 0 ||
        static_cast<const std::byte*>(part.raw()) !=
            static_cast<const std::byte*>(first.raw()) + from * first.stride(axis) * item) {
      return {};
    }
    for (int i = 0; i < first.rank(); ++i) {
      if (part.size(i) > 1 && part.stride(i) != first.stride(i)) return {};
    }
    from += part.size(axis);
  }
  // A part of one element along an axis has a stride there that means nothing.
  for (int i = 0; i < whole.rank(); ++i) {
    if (whole[i] > 1 && first.size(i) == 1) return {};
  }
  try {
    return first.view(whole, strides_of(first), 0);
  } catch (const Error&) {  // beyond its storage: neighbours by chance
    return {};
  }
}

}  // namespace

std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes) {
  const int at = wrap_axis("split", x, axis);
  std::vector<Tensor> parts;
  {
    const TapePause pause;  // one record for all of them
    std::int64_t from = 0;
    for (const std::int64_t size : sizes) {
      check(size >= 0 && size <= x.size(at) - from,
            "split: a part of {} from {} on is not within axis {} of {}", size, from, axis,
            x.shape());
      parts.push_back(slice(x, at, from, from + size));
      from += size;
    }
    check(from == x.size(at), "split: sizes make {} of the {} along axis {} of {}", from,
          x.size(at), axis, x.shape());
  }
  Tape::record_all(
      "split", {x}, parts, [shape = x.shape(), at, sizes](std::span<const Tensor> dparts) {
        const Tensor whole = joined(dparts, at, shape);
        if (whole.defined()) return std::vector{whole};
        const auto reached =
            std::find_if(dparts.begin(), dparts.end(), [](const Tensor& d) { return d.defined(); });
        Tensor dx = Tensor::empty(shape, {reached->dtype(), reached->device()});
        std::int64_t from = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          Tensor part = slice(dx, at, from, from + sizes[i]);
          from += sizes[i];
          if (part.numel() == 0) continue;
          const Tensor d = dparts[i].defined()
                               ? dparts[i]
                               : Tensor::zeros(part.shape(), {dx.dtype(), dx.device()});
          backend(dx.device()).copy(d, part);
        }
        return std::vector{dx};
      });
  return parts;
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  check(!parts.empty(), "concat: needs at least one tensor");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check(parts[i].defined(), "concat: part {} is undefined", i);
  }
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
    check(!__builtin_add_overflow(extents[at], part.size(at), &extents[at]),
          "concat: the parts are too large together, along axis {}", axis);
  }
  Tensor y = Tensor::empty(Shape(extents), {first.dtype(), first.device()});
  std::int64_t begin = 0;
  std::vector<std::int64_t> sizes;
  for (const Tensor& part : parts) {
    extents[at] = part.size(at);
    sizes.push_back(part.size(at));
    if (part.numel() > 0) {
      Tensor target = y.view(Shape(extents), strides_of(y), begin * y.stride(at));
      backend(y.device()).copy(part, target);
    }
    begin += part.size(at);
  }
  Tape::record_all("concat", parts, {y}, [sizes, at](std::span<const Tensor> dy) {
    std::vector<Tensor> dparts;
    std::int64_t from = 0;
    for (const std::int64_t size : sizes) {
      dparts.push_back(slice(dy[0], at, from, from + size));
      from += size;
    }
    return dparts;
  });
  return y;
}

}  // namespace qkv
