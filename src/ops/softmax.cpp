#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {

Tensor softmax(const Tensor& x, int axis) {
  check_floating("softmax", "x", x);
  check(x.rank() > 0 && axis >= -x.rank() && axis < x.rank(),
        "softmax: axis {} is out of range for shape {}", axis, x.shape());
  const bool last = axis == -1 || axis == x.rank() - 1;
  const Tensor rows = contiguous(last ? x : transpose(x, axis, -1));
  Tensor y = Tensor::empty(rows.shape(), {x.dtype(), x.device()});
  if (y.numel() > 0) backend(x.device()).softmax(rows, y);
  Tape::record("softmax", {rows}, y, [y](const Tensor& dy) {
    Tensor dx = Tensor::empty(y.shape(), {y.dtype(), y.device()});
    if (y.numel() > 0) backend(y.device()).softmax_backward(y, contiguous(to(dy, y.dtype())), dx);
    return std::vector{dx};
  });
  return last ? y : contiguous(transpose(y, axis, -1));
}

}  // namespace qkv
