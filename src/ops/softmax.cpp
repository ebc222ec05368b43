#include "core/backend.h"
#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {

Tensor softmax(const Tensor& x, int axis) {
  check(is_floating(x.dtype()), "softmax: x must be floating point, got {}", x.dtype());
  check(x.rank() > 0 && axis >= -x.rank() && axis < x.rank(),
        "softmax: axis {} is out of range for shape {}", axis, x.shape());
  const bool last = axis == -1 || axis == x.rank() - 1;
  const Tensor rows = contiguous(last ? x : transpose(x, axis, -1));
  Tensor y = Tensor::empty(rows.shape(), {x.dtype(), x.device()});
  if (y.numel() > 0) backend(x.device()).softmax(rows, y);
  return last ? y : contiguous(transpose(y, axis, -1));
}

}  // namespace qkv
