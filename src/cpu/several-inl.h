// Several vectors of f32 as one: a formula written for a vector then runs step by step side by side
// in all of them, for machines that find too little to do in one vector after the other. Formulas
// name operations without a namespace, and the argument decides. Per-target code: included once per
// SIMD target.
#if defined(QKV_CPU_SEVERAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_SEVERAL_INL_H_
#undef QKV_CPU_SEVERAL_INL_H_
#else
#define QKV_CPU_SEVERAL_INL_H_
#endif

#include "cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <int kCount>
struct SeveralTag {};
template <int kCount>
struct Several {
  HWY_INLINE Several() {}  // written out, to be of this target
  hn::Vec<hn::ScalableTag<float>> of[kCount];
};
template <int kCount>
struct SeveralMasks {
  HWY_INLINE SeveralMasks() {}
  hn::Mask<hn::ScalableTag<float>> of[kCount];
};

template <int kCount>
HWY_INLINE Several<kCount> Set(SeveralTag<kCount>, float x) {
  Several<kCount> y;
  HWY_UNROLL(4)
  for (int i = 0; i < kCount; ++i) y.of[i] = hn::Set(hn::ScalableTag<float>(), x);
  return y;
}
template <int kCount>
HWY_INLINE Several<kCount> Zero(SeveralTag<kCount> d) {
  return Set(d, 0.0f);
}

#define QKV_SEVERAL_OF_ONE(name, function)                        \
  template <int kCount>                                           \
  HWY_INLINE Several<kCount> name(const Several<kCount>& a) {     \
    Several<kCount> y;                                            \
    HWY_UNROLL(4)                                                 \
    for (int i = 0; i < kCount; ++i) y.of[i] = function(a.of[i]); \
    return y;                                                     \
  }
#define QKV_SEVERAL_OF_TWO(name, function, Result)                                     \
  template <int kCount>                                                                \
  HWY_INLINE Result<kCount> name(const Several<kCount>& a, const Several<kCount>& b) { \
    Result<kCount> y;                                                                  \
    HWY_UNROLL(4)                                                                      \
    for (int i = 0; i < kCount; ++i) y.of[i] = function(a.of[i], b.of[i]);             \
    return y;                                                                          \
  }
#define QKV_SEVERAL_OF_THREE(name, function, First)                                 \
  template <int kCount>                                                             \
  HWY_INLINE Several<kCount> name(const First<kCount>& a, const Several<kCount>& b, \
                                  const Several<kCount>& c) {                       \
    Several<kCount> y;                                                              \
    HWY_UNROLL(4)                                                                   \
    for (int i = 0; i < kCount; ++i) y.of[i] = function(a.of[i], b.of[i], c.of[i]); \
    return y;                                                                       \
  }

QKV_SEVERAL_OF_ONE(Abs, hn::Abs)
QKV_SEVERAL_OF_TWO(Add, hn::Add, Several)
QKV_SEVERAL_OF_TWO(Mul, hn::Mul, Several)
QKV_SEVERAL_OF_TWO(Div, hn::Div, Several)
QKV_SEVERAL_OF_TWO(Lt, hn::Lt, SeveralMasks)
QKV_SEVERAL_OF_TWO(max_keeping_nan, max_keeping_nan, Several)
QKV_SEVERAL_OF_TWO(min_keeping_nan, min_keeping_nan, Several)
QKV_SEVERAL_OF_THREE(MulAdd, hn::MulAdd, Several)
QKV_SEVERAL_OF_THREE(NegMulAdd, hn::NegMulAdd, Several)
QKV_SEVERAL_OF_THREE(IfThenElse, hn::IfThenElse, SeveralMasks)

#undef QKV_SEVERAL_OF_ONE
#undef QKV_SEVERAL_OF_TWO
#undef QKV_SEVERAL_OF_THREE

template <int kTerms, int kCount>
HWY_INLINE Several<kCount> evaluate(SeveralTag<kCount>, const Polynomial<kTerms>& p,
                                    const Several<kCount>& x) {
  Several<kCount> y;
  evaluate(hn::ScalableTag<float>(), p, x.of, y.of);
  return y;
}
template <int kCount>
HWY_INLINE Several<kCount> exp2_product(SeveralTag<kCount>, const Several<kCount>& a,
                                        const Several<kCount>& h,
                                        const Several<kCount>& minus_rest) {
  Several<kCount> y;
  exp2_product(hn::ScalableTag<float>(), a.of, h.of, minus_rest.of, y.of);
  return y;
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
