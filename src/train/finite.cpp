#include "train/finite.h"

#include <algorithm>
#include <cstdint>

#include "core/backend.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

// Infinities and NaN have all bits of the exponent set.
template <class Bits>
bool are_finite(const Bits* values, std::int64_t count, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;  // without a branch inside, which a compiler vectorises
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(count, begin + kBlock);
    unsigned found = 0;
    for (std::int64_t i = begin; i < end; ++i) found |= (values[i] & exponent) == exponent;
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool is_finite(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return true;
  Tensor values = to(x, kCpu);
  if (!values.is_contiguous()) {
    values = Tensor::empty(x.shape(), {x.dtype()});
    backend(kCpu).copy(to(x, kCpu), values);
  }
  const std::int64_t count = values.numel();
  if (count == 0) return true;
  switch (x.dtype()) {
    case DType::f32:
      return are_finite(static_cast<const std::uint32_t*>(values.raw()), count, 0x7F800000U);
    case DType::bf16:
      return are_finite<std::uint16_t>(static_cast<const std::uint16_t*>(values.raw()), count,
                                       0x7F80);
    default:
      return are_finite<std::uint16_t>(static_cast<const std::uint16_t*>(values.raw()), count,
                                       0x7C00);
  }
}

}  // namespace qkv
