// Products with everything before, by chunks: within a chunk through the triangle of its scores,
// from earlier chunks through one sum of b c^T. Its gradients are three more of the same kind.
#include <algorithm>
#include <array>

#include "core/backend.h"
#include "ops/causal_sums.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/linear_attention.h"
#include "qkv/memory.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

// Within a chunk work is square, from chunk to chunk there is a sum to keep: the GPU, where memory
// is what it waits for, takes longer ones.
std::int64_t chunk_of(Device device) { return device == kCpu ? 64 : 128; }
// What a segment of chunks may take for scores and sums, in f32: 64 MiB, or a sixteenth of a GPU's
// memory, where each segment costs copies and launches. Longer inputs go through several, so memory
// beyond the result does not grow with the length for ever.
std::int64_t segment_elements(Device device) {
  constexpr std::int64_t kLeast = std::int64_t{16} << 20;
  if (device == kCpu) return kLeast;
  return std::max(kLeast, static_cast<std::int64_t>(memory_use(device).total / 16 / sizeof(float)));
}

// Rows [begin, begin + chunk * count): `count` chunks.
struct Segment {
  std::int64_t begin = 0, chunk = 0, count = 0;
};

std::vector<Segment> segments_of(const Tensor& a, std::int64_t state) {
  const std::int64_t length = a.size(1), chunk = chunk_of(a.device());
  const std::int64_t each = std::max<std::int64_t>(1, a.size(0) * (chunk * chunk + state));
  const std::int64_t most = std::max<std::int64_t>(1, segment_elements(a.device()) / each);
  std::vector<Segment> segments;
  const std::int64_t chunks = length / chunk;
  for (std::int64_t done = 0; done < chunks; done += most) {
    segments.push_back({done * chunk, chunk, std::min(most, chunks - done)});
  }
  if (length % chunk > 0) segments.push_back({chunks * chunk, length % chunk, 1});
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

struct Direction {
  bool reverse = false;
  bool carries = false;  // what came before counts, and what comes after is asked for
};

// A factor of a product with `other`, which is bf16 where that is.
DType factor_dtype(const Tensor& other) {
  return other.dtype() == DType::bf16 ? DType::bf16 : DType::f32;
}

// `carry` f32 [groups, P * R] goes from segment to segment.
Tensor compute(const std::array<Tensor, 3>& given, Direction direction, Tensor& carry,
               DType dtype) {
  const TapePause pause;
  const Tensor a = as_groups(given[0]), b = as_groups(given[1]), c = as_groups(given[2]);
  const std::int64_t groups = a.size(0), length = a.size(1), width = c.size(2);
  const std::int64_t state = a.size(2) * width;
  Backend& device = backend(a.device());
  Tensor y = Tensor::empty({groups, length, width}, {dtype, a.device()});
  if (y.numel() > 0) {
    std::vector<Segment> segments = segments_of(a, state);
    if (direction.reverse) std::reverse(segments.begin(), segments.end());
    const bool has_past = direction.carries || segments.size() > 1 || segments[0].count > 1;
    for (const Segment& s : segments) {
      const Tensor from = rows_of(a, s), keys = rows_of(b, s), values = rows_of(c, s);
      const Tensor products = f32_product(from, transpose(keys, 1, 2));
      Tensor scores = values.dtype() == DType::bf16
                          ? Tensor::empty(products.shape(), {DType::bf16, a.device()})
                          : products;
      device.keep_triangle(products, direction.reverse, scores);
      Tensor sum = f32_product(scores, values);
      if (has_past) {
        const Tensor here = f32_product(transpose(keys, 1, 2), values);
        Tensor past = factor_dtype(from) == DType::f32
                          ? here
                          : Tensor::empty(here.shape(), {DType::bf16, a.device()});
        Tensor by_group = reshape(past, {groups, s.count, state});
        device.running_sum(reshape(here, {groups, s.count, state}), carry, direction.reverse,
                           by_group);
        device.binary(BinaryOp::add, sum, f32_product(from, past), sum);
      }
      Tensor to_rows = slice(y, 1, s.begin, s.begin + s.chunk * s.count);
      device.copy(reshape(sum, {groups, s.chunk * s.count, width}), to_rows);
    }
  }
  return reshape(y, {given[0].size(0), given[0].size(1), length, width});
}

// A sum to add to, of its own memory.
Tensor carry_of(const Tensor& given, const Tensor& a, const Tensor& c) {
  const TapePause pause;
  const Shape shape{a.size(0) * a.size(1), a.size(3) * c.size(3)};
  Tensor carry = Tensor::zeros(shape, {DType::f32, a.device()});
  if (given.defined() && given.numel() > 0) {
    Tensor as_given = reshape(carry, {a.size(0), a.size(1), a.size(3), c.size(3)});
    backend(a.device()).copy(given, as_given);
  }
  return carry;
}

void check_causal_product(const Tensor& a, const Tensor& b, const Tensor& c) {
  check_floating("causal_product", "a", a);
  check_floating("causal_product", "b", b);
  check_floating("causal_product", "c", c);
  check(a.rank() == 4 && b.shape() == a.shape() && c.rank() == 4 && c.size(0) == a.size(0) &&
            c.size(1) == a.size(1) && c.size(2) == a.size(2),
        "causal_product: a and b must be [B, H, S, P] and c [B, H, S, R], got {}, {} and {}",
        a.shape(), b.shape(), c.shape());
  static_cast<void>(Shape{a.size(0), a.size(1), a.size(3), c.size(3)});  // of sums: refused here
  check(a.device() == b.device() && a.device() == c.device(),
        "causal_product: a, b and c are on {}, {} and {}", a.device(), b.device(), c.device());
}

Tensor compute_alone(const Tensor& a, const Tensor& b, const Tensor& c, bool reverse) {
  Tensor carry = carry_of({}, a, c);
  return compute({a, b, c}, {reverse, false}, carry, a.dtype());
}

}  // namespace

Tensor causal_product(const Tensor& a, const Tensor& b, const Tensor& c, bool reverse) {
  check_causal_product(a, b, c);
  const Tensor y = compute_alone(a, b, c, reverse);
  return Tape::record("causal_product", {a, b, c}, y, [a, b, c, reverse](const Tensor& dy) {
    return std::vector{to(compute_alone(dy, c, b, reverse), a.dtype()),
                       to(compute_alone(c, dy, a, !reverse), b.dtype()),
                       to(compute_alone(b, a, dy, !reverse), c.dtype())};
  });
}

CausalSums causal_sums(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& carry) {
  check_causal_product(a, b, c);
  const Shape sums{a.size(0), a.size(1), a.size(3), c.size(3)};
  check(!carry.defined() || (carry.dtype() == DType::f32 && carry.shape() == sums),
        "causal_sums: the carry must be f32 {}, got {} {}", sums, carry.dtype(), carry.shape());
  const auto by_head = [](const Tensor& x, const Shape& shape) {
    const TapePause pause;
    return reshape(x, {shape[0], shape[1], shape[2], shape[3]});
  };
  Tensor after = carry_of(carry, a, c);
  CausalSums result;
  result.y = compute({a, b, c}, {.carries = true}, after, DType::f32);
  result.carry = by_head(after, sums);
  // The same sums again: queries meet what came before them, keys and values what comes after. The
  // last of them leaves the gradient of the carry behind.
  Tape::record_all(
      "causal_sums", {a, b, c, carry}, {result.y, result.carry},
      [=](std::span<const Tensor> douts) -> std::vector<Tensor> {
        const Tensor dcarry = douts[1];
        const Tensor dy = douts[0].defined() ? to(douts[0], factor_dtype(a))
                                             : Tensor::zeros(c.shape(), {c.dtype(), c.device()});
        const auto turned = [](const Tensor& x) { return x.defined() ? transpose(x, 2, 3) : x; };
        Tensor before = carry_of(turned(carry), dy, b), behind = carry_of(turned(dcarry), c, a);
        Tensor left = carry_of(dcarry, a, c);
        const Tensor da = compute({dy, c, b}, {.carries = true}, before, a.dtype());
        const Tensor db = compute({c, dy, a}, {true, true}, behind, b.dtype());
        const Tensor dc = compute({b, a, dy}, {true, true}, left, c.dtype());
        return {da, db, dc, carry.defined() ? by_head(left, sums) : Tensor()};
      });
  return result;
}

}  // namespace qkv
