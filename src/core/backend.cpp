#include "core/backend.h"

#include <utility>

#include "core/check.h"

namespace qkv {

namespace {

struct Arrived final : Reading {
  Tensor value;
  explicit Arrived(Tensor x) : value(std::move(x)) {}
  Tensor wait() override { return value; }
};

}  // namespace

std::unique_ptr<Reading> Backend::begin_reading(const Tensor& x) {
  Tensor here = Tensor::empty(x.shape(), {x.dtype()});
  copy(x, here);
  return std::make_unique<Arrived>(std::move(here));
}

std::unique_ptr<Recording> Backend::record(const std::function<void()>&) {
  fail<NotRecordable>("record: this device runs what it is told at once, and records nothing");
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
