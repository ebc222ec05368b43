#include "ops/fold.h"

#include <algorithm>

#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

std::vector<std::int64_t> extents_of(const Shape& shape) {
  return {shape.extents().begin(), shape.extents().end()};
}

// The order of axes in which `axes` stand between the rows and the columns.
std::vector<int> folded_order(int rank, const std::vector<int>& axes) {
  std::vector<int> order;
  for (int axis = 0; axis + 1 < rank; ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) order.push_back(axis);
  }
  order.insert(order.end(), axes.begin(), axes.end());
  order.push_back(rank - 1);
  return order;
}

}  // namespace

std::vector<int> shared_axes(const Tensor& a, const Tensor& b) {
  std::vector<int> axes;
  const int lead = b.rank() - a.rank();
  for (int axis = 0; lead >= 0 && axis + 2 < b.rank(); ++axis) {
    const bool is_shared = axis < lead || a.size(axis - lead) == 1;
    if (is_shared && b.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

std::vector<int> axes_beside_columns(const Tensor& b, const std::vector<int>& axes) {
  std::vector<int> beside;
  std::int64_t step = b.size(-1) * b.stride(-1);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (b.stride(*axis) != step) continue;
    beside.insert(beside.begin(), *axis);
    step *= b.size(*axis);
  }
  return beside;
}

Tensor as_columns(const Tensor& x, const std::vector<int>& axes) {
  if (axes.empty()) return x;
  const TapePause pause;
  std::vector<std::int64_t> extents = extents_of(x.shape());
  for (const int axis : axes) {
    extents.back() *= extents[axis];
    extents[axis] = 1;
  }
  return reshape(permute(x, folded_order(x.rank(), axes)), extents);
}

Tensor from_columns(const Tensor& x, const std::vector<int>& axes, const Shape& like) {
  if (axes.empty()) return x;
  const TapePause pause;
  const std::vector<int> order = folded_order(x.rank(), axes);
  std::vector<std::int64_t> extents;
  std::vector<int> back(order.size());
  for (int at = 0; at < x.rank(); ++at) {
    const int axis = order[at];
    const bool is_folded = std::find(axes.begin(), axes.end(), axis) != axes.end();
    extents.push_back(is_folded || at + 1 == x.rank() ? like[axis] : x.size(axis));
    back[axis] = at;
  }
  return permute(reshape(x, extents), back);
}

}  // namespace qkv
