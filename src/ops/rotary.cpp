#include "core/backend.h"
#include "ops/checks.h"
#include "ops/layout.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  RotaryProblem problem;
  problem.x = x;
  problem.y = empty_in_layout(x, x.shape(), x.dtype());
  problem.cos = cos;
  problem.sin = sin;
  problem.interleaved = interleaved;
  problem.inverse = inverse;
  if (x.numel() > 0) backend(x.device()).rotary(problem);
  return problem.y;
}

}  // namespace

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved) {
  check(x.defined() && is_floating(x.dtype()) && x.rank() == 4,
        "rotary: x must be floating point [B, H, S, D], got {} {}", x.dtype(), x.shape());
  check(cos.defined() && sin.defined() && cos.dtype() == DType::f32 && sin.dtype() == DType::f32 &&
            cos.shape() == sin.shape(),
        "rotary: cos and sin must be f32 of one shape, got {} {} and {} {}", cos.dtype(),
        cos.shape(), sin.dtype(), sin.shape());
  check((cos.rank() == 2 || (cos.rank() == 3 && (cos.size(0) == x.size(0) || cos.size(0) == 1))) &&
            cos.size(-2) == x.size(2) && 2 * cos.size(-1) <= x.size(3),
        "rotary: cos and sin must be [S, R/2] or [B, S, R/2] with R <= D to fit x {}, got {}",
        x.shape(), cos.shape());
  const auto table = [&](const Tensor& t) {
    const Tensor c = contiguous(to(t, x.device()));
    return reshape(c, {c.rank() == 3 ? c.size(0) : 1, c.size(-2), c.size(-1)});
  };
  const Tensor c = table(cos), s = table(sin);
  return Tape::record("rotary", {x}, turn(x, c, s, interleaved, false),
                      [c, s, interleaved](const Tensor& dy) {
                        return std::vector{turn(dy, c, s, interleaved, true)};
                      });
}

}  // namespace qkv
