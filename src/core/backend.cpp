#include "core/backend.h"

#include "core/check.h"

namespace qkv {

std::unique_ptr<Recording> Backend::record(const std::function<void()>&) {
  fail("record: this device runs what it is told at once, and records nothing");
}

std::shared_ptr<const Packed> Backend::pack_int8(const Int8Weight& weight) {
  fail("PackedWeight: {} has no products of int8; load the weights as bf16",
       weight.values.device());
}

void Backend::quantize(const Tensor& x, const Rounding&, Tensor&, Tensor&) {
  fail("quantize: {} has no int8", x.device());
}

void Backend::dequantize(const Tensor& values, const Tensor&, const Rounding&, Tensor&) {
  fail("dequantize: {} has no int8", values.device());
}

}  // namespace qkv
