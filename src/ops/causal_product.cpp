// Products with everything before, by chunks: within a chunk through the triangle of its scores,
// from earlier chunks through one sum of b c^T. Its gradients are three more of the same kind.
#include <algorithm>

#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/linear_attention.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

constexpr std::int64_t kChunk = 64;
// What a segment of chunks may take for scores and sums: 64 MiB of f32. Longer inputs go through
// several, so memory beyond the result does not grow with the length.
constexpr std::int64_t kSegmentElements = std::int64_t{16} << 20;

// Rows [begin, begin + chunk * count): `count` chunks.
struct Segment {
  std::int64_t begin = 0, chunk = 0, count = 0;
};

std::vector<Segment> segments_of(std::int64_t groups, std::int64_t length, std::int64_t state) {
  const std::int64_t each = groups * (kChunk * kChunk + state);
  const std::int64_t most = std::max<std::int64_t>(1, kSegmentElements / each);
  std::vector<Segment> segments;
  const std::int64_t chunks = length / kChunk;
  for (std::int64_t done = 0; done < chunks; done += most) {
    segments.push_back({done * kChunk, kChunk, std::min(most, chunks - done)});
  }
  if (length % kChunk > 0) segments.push_back({chunks * kChunk, length % kChunk, 1});
  return segments;
}

// The rows of a segment of x [G, S, W] as [G * count, chunk, W].
Tensor rows_of(const Tensor& x, const Segment& s) {
  const std::int64_t rows = s.chunk * s.count;
  const Tensor part = contiguous(slice(x, 1, s.begin, s.begin + rows));
  return reshape(part, {x.size(0) * s.count, s.chunk, x.size(2)});
}

Tensor f32_product(const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::empty({a.size(0), a.size(1), b.size(2)}, {DType::f32, a.device()});
  MatmulProblem problem;
  problem.a = a;
  problem.b = b;
  problem.y = y;
  backend(a.device()).matmul(problem);
  return y;
}

Tensor as_groups(const Tensor& x) {
  return reshape(contiguous(x), {x.size(0) * x.size(1), x.size(2), x.size(3)});
}

Tensor compute(const Tensor& given_a, const Tensor& given_b, const Tensor& given_c, bool reverse) {
  const TapePause pause;
  const Tensor a = as_groups(given_a), b = as_groups(given_b), c = as_groups(given_c);
  const std::int64_t groups = a.size(0), length = a.size(1), width = c.size(2);
  const std::int64_t state = a.size(2) * width;
  Backend& device = backend(a.device());
  Tensor y = Tensor::empty({groups, length, width}, {a.dtype(), a.device()});
  if (y.numel() > 0) {
    std::vector<Segment> segments = segments_of(groups, length, state);
    if (reverse) std::reverse(segments.begin(), segments.end());
    const bool has_past = segments.size() > 1 || segments[0].count > 1;
    Tensor carry = Tensor::zeros({groups, state}, {DType::f32, a.device()});
    for (const Segment& s : segments) {
      const Tensor from = rows_of(a, s), keys = rows_of(b, s), values = rows_of(c, s);
      Tensor scores = f32_product(from, transpose(keys, 1, 2));
      device.keep_triangle(scores, reverse);
      Tensor sum = f32_product(scores, values);
      if (has_past) {
        Tensor past = f32_product(transpose(keys, 1, 2), values);
        Tensor by_group = reshape(past, {groups, s.count, state});
        device.running_sum(by_group, carry, reverse);
        device.binary(BinaryOp::add, sum, f32_product(from, past), sum);
      }
      Tensor to_rows = slice(y, 1, s.begin, s.begin + s.chunk * s.count);
      device.copy(reshape(sum, {groups, s.chunk * s.count, width}), to_rows);
    }
  }
  return reshape(y, {given_a.size(0), given_a.size(1), length, width});
}

}  // namespace

Tensor causal_product(const Tensor& a, const Tensor& b, const Tensor& c, bool reverse) {
  check_floating("causal_product", "a", a);
  check_floating("causal_product", "b", b);
  check_floating("causal_product", "c", c);
  check(a.rank() == 4 && b.shape() == a.shape() && c.rank() == 4 && c.size(0) == a.size(0) &&
            c.size(1) == a.size(1) && c.size(2) == a.size(2),
        "causal_product: a and b must be [B, H, S, P] and c [B, H, S, R], got {}, {} and {}",
        a.shape(), b.shape(), c.shape());
  check(a.device() == b.device() && a.device() == c.device(),
        "causal_product: a, b and c are on {}, {} and {}", a.device(), b.device(), c.device());
  const Tensor y = compute(a, b, c, reverse);
  return Tape::record("causal_product", {a, b, c}, y, [a, b, c, reverse](const Tensor& dy) {
    return std::vector{to(compute(dy, c, b, reverse), a.dtype()),
                       to(compute(c, dy, a, !reverse), b.dtype()),
                       to(compute(b, a, dy, !reverse), c.dtype())};
  });
}

}  // namespace qkv
