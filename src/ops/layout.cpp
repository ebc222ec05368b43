#include "ops/layout.h"

#include <algorithm>
#include <array>
#include <span>

namespace qkv {

Shape with_last(const Shape& shape, std::int64_t extent) {
  std::array<std::int64_t, kMaxRank> extents{};
  std::ranges::copy(shape.extents(), extents.begin());
  const auto rank = static_cast<std::size_t>(shape.rank());
  extents[rank - 1] = extent;
  return Shape(std::span(extents).first(rank));
}

Tensor empty_in_layout(const Tensor& like, const Shape& shape, DType dtype) {
  const auto rank = static_cast<std::size_t>(shape.rank());
  // Axes of extent 1 have strides that mean nothing: they stay where row-major order has them.
  const auto moves = [&](int axis) { return like.size(axis) > 1 && axis + 1 < shape.rank(); };
  std::array<int, kMaxRank> order{}, moving{};
  int count = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (moves(axis)) moving[count++] = axis;
  }
  std::stable_sort(moving.begin(), moving.begin() + count,
                   [&](int a, int b) { return like.stride(a) > like.stride(b); });
  for (int axis = 0, next = 0; axis < shape.rank(); ++axis) {
    order[axis] = moves(axis) ? moving[next++] : axis;
  }
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t step = 1;
  for (std::size_t i = rank; i-- > 0;) {
    strides[order[i]] = step;
    step *= std::max<std::int64_t>(shape[order[i]], 1);
  }
  const Tensor dense = Tensor::empty(shape, {dtype, like.device()});
  return dense.view(shape, std::span(strides).first(rank), 0);
}

}  // namespace qkv
