// Weight and bias of a norm as f32. Per-target code: included once per SIMD target.
#if defined(QKV_CPU_NORM_PARAMETERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_NORM_PARAMETERS_INL_H_
#undef QKV_CPU_NORM_PARAMETERS_INL_H_
#else
#define QKV_CPU_NORM_PARAMETERS_INL_H_
#endif

#include "core/dispatch.h"
#include "cpu/lanes-inl.h"
#include "cpu/scratch.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void load_shifted(const T* from, std::int64_t count, float offset, float* to) {
  const VecF32 shift = hn::Set(F32(), offset);
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    store_lanes(hn::Add(load_lanes(from + i, n), shift), to + i, n);
  });
}

// Null where absent. What is f32 already and needs no offset is used where it lies.
class NormParameters {
  Scratch<float> weight_copy_, bias_copy_;  // first, since the pointers may be theirs

 public:
  std::int64_t width;
  const float *weight, *bias;

  NormParameters(std::int64_t size, const Tensor& given_weight, const Tensor& given_bias,
                 float offset)
      : width(size),
        weight(as_floats(given_weight, offset, weight_copy_)),
        bias(as_floats(given_bias, 0, bias_copy_)) {}

 private:
  const float* as_floats(const Tensor& x, float offset, Scratch<float>& copy) const {
    if (!x.defined()) return nullptr;
    if (x.dtype() == DType::f32 && offset == 0) return x.data<float>();
    copy = Scratch<float>(width);
    dispatch_float(x.dtype(),
                   [&]<class T>() { load_shifted(x.data<T>(), width, offset, copy.get()); });
    return copy.get();
  }
};

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
