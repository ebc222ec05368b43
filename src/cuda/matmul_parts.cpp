// A few small results of long sums leave most of the device idle: features of keys times values, of
// a few heads. So parts of the inner axis are a batch, whose results are summed. (One product of
// that kind the library divides itself.)
#include "cuda/cuda_backend.h"

namespace qkv {
namespace {

// How many parts; 1 where there need not be more, or they do not lie so.
std::int64_t inner_parts(const MatmulProblem& p) {
  constexpr std::int64_t kLong = 8192, kPart = 1024, kTile = 128, kFew = 64;
  const std::int64_t batch = p.y.size(0), inner = p.a.size(2);
  const auto tiles = [](std::int64_t n) { return (n + kTile - 1) / kTile; };
  const bool is_plain = p.y.dtype() == DType::f32 && p.y.is_contiguous() && !p.bias.defined() &&
                        p.activation == Activation::none;
  // Matrices follow each other along the inner axis.
  const bool joins =
      p.a.stride(0) == inner * p.a.stride(2) && p.b.stride(0) == inner * p.b.stride(1);
  const bool is_few = batch > 1 && batch * tiles(p.y.size(1)) * tiles(p.y.size(2)) < kFew;
  return is_plain && joins && is_few && inner >= kLong && inner % kPart == 0 ? inner / kPart : 1;
}

}  // namespace

bool CudaBackend::matmul_by_parts(const MatmulProblem& p) {
  const std::int64_t parts = inner_parts(p);
  if (parts == 1) return false;
  const std::int64_t batch = p.y.size(0), rows = p.y.size(1), columns = p.y.size(2);
  const std::int64_t inner = p.a.size(2) / parts, size = rows * columns;
  const std::int64_t of_a[] = {inner * p.a.stride(2), p.a.stride(1), p.a.stride(2)};
  const std::int64_t of_b[] = {inner * p.b.stride(1), p.b.stride(1), p.b.stride(2)};
  MatmulProblem part;
  part.a = p.a.view({batch * parts, rows, inner}, of_a, 0);
  part.b = p.b.view({batch * parts, inner, columns}, of_b, 0);
  part.y = Tensor::empty({batch * parts, rows, columns}, {DType::f32, device()});
  matmul(part);
  const std::int64_t of_sums[] = {parts * size, size, 1}, of_y[] = {size, size, 1};
  Tensor y = p.y.view({batch, 1, size}, of_y, 0);
  sum(part.y.view({batch, parts, size}, of_sums, 0), y);
  return true;
}

}  // namespace qkv
