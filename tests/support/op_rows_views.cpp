// Rows of the operator table: views, copies, sums over axes.
#include <algorithm>
#include <numeric>

#include "qkv/ops.h"
#include "support/op_table.h"

namespace qkv::test {
namespace {

// y[i] = x[source(index of i)], where an index has one number per axis.
using Index = std::vector<std::int64_t>;
Array gather(const Array& x, const Shape& shape, const std::function<Index(const Index&)>& source) {
  Array y(shape);
  Index at(static_cast<std::size_t>(shape.rank()));
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    std::int64_t rest = i;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      at[static_cast<std::size_t>(axis)] = rest % shape[axis];
      rest /= shape[axis];
    }
    const Index from = source(at);
    std::int64_t flat = 0;
    for (int axis = 0; axis < x.shape.rank(); ++axis) {
      flat = flat * x.shape[axis] + from[static_cast<std::size_t>(axis)];
    }
    y[i] = x[flat];
  }
  return y;
}

Array permuted(const Array& x, const std::vector<int>& axes) {
  std::vector<std::int64_t> extents;
  for (const int axis : axes) extents.push_back(x.shape[axis]);
  return gather(x, Shape(extents), [&](const Index& at) {
    Index from(at.size());
    for (std::size_t i = 0; i < axes.size(); ++i) from[static_cast<std::size_t>(axes[i])] = at[i];
    return from;
  });
}

Array summed(const Array& x, const std::vector<int>& axes, bool mean) {
  Shape kept = x.shape;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    if (axes.empty() || std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      kept = with_extent(kept, axis, 1);
    }
  }
  Array y(kept);
  for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
    y[broadcast_index(kept, x.shape, i)] += x[i];
  }
  const double share =
      mean ? static_cast<double>(kept.numel()) / static_cast<double>(x.shape.numel()) : 1;
  return map(y, [&](double value) { return value * share; });
}

OpRow sum_row(const std::string& name, const std::vector<int>& axes, bool mean) {
  OpRow row;
  row.name = name;
  row.op = [=](const Tensors& in) {
    // Both forms of the result: with the axes kept, and without them.
    const Tensor kept = mean ? qkv::mean(in[0], axes, true) : qkv::sum(in[0], axes, true);
    const Tensor squeezed = mean ? qkv::mean(in[0], axes) : qkv::sum(in[0], axes);
    return Tensors{kept, squeezed};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    Array kept = summed(in[0], axes, mean), squeezed = kept;
    std::vector<std::int64_t> extents;
    for (int axis = 0; axis < in[0].shape.rank(); ++axis) {
      if (!axes.empty() && std::find(axes.begin(), axes.end(), axis) == axes.end()) {
        extents.push_back(in[0].shape[axis]);
      }
    }
    squeezed.shape = Shape(extents);
    return Arrays{kept, squeezed};
  };
  row.shapes = {{{3, 5, 7}},  {{1, 1, 1}},   {{2, 1, 33}},   {{4, 37, 1}},
                {{65, 3, 2}}, {{70, 1, 24}}, {{1100, 1, 24}}};
  if (!mean) row.shapes.push_back({{0, 3, 2}});
  row.large = {{17, 95, 129}};
  row.terms = 4;
  return row;
}

OpRow unary_view(const std::string& name, std::function<Tensor(const Tensor&)> op,
                 std::function<Array(const Array&)> reference) {
  OpRow row;
  row.name = name;
  row.op = [op = std::move(op)](const Tensors& in) { return Tensors{op(in[0])}; };
  row.reference = [r = std::move(reference)](const Arrays& in, const Rounding&) {
    return Arrays{r(in[0])};
  };
  row.shapes = {{{2, 3, 5}}, {{1, 1, 1}}, {{3, 1, 17}}, {{2, 0, 3}}, {{5, 33, 2}}};
  row.large = {{33, 67, 65}};
  return row;
}

OpRow concat_row() {
  OpRow row;
  row.name = "concat";
  row.op = [](const Tensors& in) { return Tensors{concat(in, 1)}; };
  row.reference = [](const Arrays& in, const Rounding&) {
    std::int64_t total = 0;
    for (const Array& part : in) total += part.size(1);
    Array y(with_extent(in[0].shape, 1, total));
    const std::int64_t inner = in[0].size(2);
    std::int64_t before = 0;
    for (const Array& part : in) {
      const std::int64_t run = part.size(1) * inner;
      for (std::int64_t i = 0; i < part.shape.numel(); ++i) {
        y[i / run * total * inner + before * inner + i % run] = part[i];
      }
      before += part.size(1);
    }
    return Arrays{y};
  };
  row.shapes = {{{2, 3, 5}, {2, 1, 5}, {2, 4, 5}}, {{1, 1, 1}}, {{2, 0, 3}, {2, 2, 3}}};
  row.large = {{30, 40, 33}, {30, 70, 33}};
  return row;
}

OpRow split_row() {
  OpRow row;
  row.name = "split";
  const auto sizes_of = [](std::int64_t extent) {
    return std::vector<std::int64_t>{extent / 3, 0, extent - extent / 3};
  };
  row.op = [=](const Tensors& in) { return split(in[0], 1, sizes_of(in[0].size(1))); };
  row.reference = [=](const Arrays& in, const Rounding&) {
    Arrays parts;
    std::int64_t from = 0;
    for (const std::int64_t size : sizes_of(in[0].size(1))) {
      parts.push_back(gather(in[0], with_extent(in[0].shape, 1, size), [&](const Index& at) {
        return Index{at[0], at[1] + from, at[2]};
      }));
      from += size;
    }
    return parts;
  };
  row.shapes = {{{2, 7, 5}}, {{1, 1, 1}}, {{3, 3, 16}}, {{2, 0, 3}}};
  row.large = {{30, 70, 33}};
  return row;
}

OpRow expand_row() {
  OpRow row;
  row.name = "expand";
  row.op = [](const Tensors& in) {
    const Shape& s = in[0].shape();
    return Tensors{expand(in[0], {4, s[0], s[1] == 1 ? 6 : s[1], s[2]})};
  };
  row.reference = [](const Arrays& in, const Rounding&) {
    const Shape& s = in[0].shape;
    Array y(Shape{4, s[0], s[1] == 1 ? 6 : s[1], s[2]});
    for (std::int64_t i = 0; i < y.shape.numel(); ++i) {
      y[i] = in[0][broadcast_index(s, y.shape, i)];
    }
    return Arrays{y};
  };
  row.shapes = {{{2, 1, 5}}, {{2, 3, 5}}, {{1, 1, 1}}, {{0, 1, 2}}};
  row.large = {{40, 1, 301}};
  row.terms = 4;
  return row;
}

}  // namespace

std::vector<OpRow> view_rows() {
  const auto same = [](const Array& x) { return x; };
  const auto reshaped = [](const Array& x) {
    Array y = x;
    y.shape = Shape{x.size(0) * x.size(1), x.size(2)};
    return y;
  };
  std::vector<OpRow> rows{
      unary_view(
          "transpose", [](const Tensor& x) { return transpose(x, 0, -1); },
          [](const Array& x) {
            return permuted(x, {2, 1, 0});
          }),
      unary_view(
          "permute",
          [](const Tensor& x) {
            return permute(x, {1, -1, 0});
          },
          [](const Array& x) {
            return permuted(x, {1, 2, 0});
          }),
      unary_view(
          "permuted_copy",
          [](const Tensor& x) {
            return contiguous(permute(x, {1, 0, 2}));
          },
          [](const Array& x) {
            return permuted(x, {1, 0, 2});
          }),
      unary_view(
          "slice", [](const Tensor& x) { return slice(x, -1, x.size(2) / 3, x.size(2)); },
          [](const Array& x) {
            const std::int64_t begin = x.size(2) / 3;
            return gather(x, with_extent(x.shape, 2, x.size(2) - begin), [&](const Index& at) {
              return Index{at[0], at[1], at[2] + begin};
            });
          }),
      unary_view(
          "reshape",
          [](const Tensor& x) {
            return reshape(x, {x.size(0) * x.size(1), x.size(2)});
          },
          reshaped),
      unary_view(
          "reshape_rest",
          [](const Tensor& x) {
            // -1 cannot be told from 0 elements.
            return reshape(x, {x.numel() > 0 ? -1 : x.size(0) * x.size(1), x.size(2)});
          },
          reshaped),
      unary_view(
          "contiguous", [](const Tensor& x) { return contiguous(x); }, same),
      unary_view(
          "to_f32", [](const Tensor& x) { return to(x, DType::f32); }, same),
      unary_view(
          "to_bf16", [](const Tensor& x) { return to(x, DType::bf16); }, same),
      unary_view(
          "to_f16", [](const Tensor& x) { return to(x, DType::f16); }, same),
      concat_row(),
      split_row(),
      expand_row(),
      sum_row("sum_all", {}, false),
      sum_row("sum_last", {2}, false),
      sum_row("sum_first", {0}, false),
      sum_row("sum_middle", {1}, false),
      sum_row("sum_two", {0, 2}, false),
      sum_row("sum_leading", {0, 1}, false),
      sum_row("mean_all", {}, true),
      sum_row("mean_last", {2}, true),
  };
  return rows;
}

}  // namespace qkv::test
