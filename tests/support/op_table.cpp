#include "support/op_table.h"

#include <algorithm>

namespace qkv::test {

std::int64_t Array::rows() const { return shape[-1] > 0 ? shape.numel() / shape[-1] : 0; }

Shape with_extent(const Shape& shape, int axis, std::int64_t extent) {
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[static_cast<std::size_t>(axis < 0 ? axis + shape.rank() : axis)] = extent;
  return Shape(extents);
}

std::int64_t broadcast_index(const Shape& inner, const Shape& outer, std::int64_t at) {
  std::int64_t index = 0, step = 1;
  for (int axis = -1; axis >= -inner.rank(); --axis) {
    if (inner[axis] > 1) index += at % outer[axis] * step;
    at /= outer[axis];
    step *= inner[axis];
  }
  return index;
}

Shape broadcast_of(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape shape = longer;
  for (int axis = -1; axis >= -shorter.rank(); --axis) {
    if (shape[axis] == 1) shape = with_extent(shape, axis, shorter[axis]);
  }
  return shape;
}

Array map(const Array& x, const std::function<double(double)>& f) {
  Array y(x.shape);
  std::transform(x.values.begin(), x.values.end(), y.values.begin(), f);
  return y;
}

std::vector<std::int64_t> some_ids(std::int64_t count, std::int64_t bound) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    ids[static_cast<std::size_t>(i)] = (i * 7 + i / 3) % std::max<std::int64_t>(bound, 1);
  }
  return ids;
}

const std::vector<OpRow>& op_table() {
  static const std::vector<OpRow> table = [] {
    std::vector<OpRow> rows;
    for (auto part :
         {view_rows, elementwise_rows, product_rows, layer_rows, linear_attention_rows}) {
      for (OpRow& row : part()) rows.push_back(std::move(row));
    }
    return rows;
  }();
  return table;
}

}  // namespace qkv::test
