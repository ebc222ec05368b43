// exp2 and tanh for vectors of f32, as exact as a softmax needs and no more. Per-target code:
// included once per SIMD target, inside HWY_NAMESPACE.
#if defined(QKV_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_EXP_INL_H_
#undef QKV_CPU_EXP_INL_H_
#else
#define QKV_CPU_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The larger, or the smaller, of the two; x when x is NaN. x86 returns the second operand on NaN.
// Highway's Max and Min on Arm are FMAXNM and FMINNM, which drop NaN where FMAX and FMIN keep it.
template <class V>
HWY_INLINE V max_keeping_nan(V bound, V x) {
#if HWY_TARGET == HWY_NEON
  return V{vmaxq_f32(bound.raw, x.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}
template <class V>
HWY_INLINE V min_keeping_nan(V bound, V x) {
#if HWY_TARGET == HWY_NEON
  return V{vminq_f32(bound.raw, x.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Lt(bound, x), bound, x);
#endif
}

// The terms of a polynomial, the largest power first, four times each.
template <int kTerms>
struct Polynomial {
  alignas(16) float terms[kTerms][4];
};
template <int kTerms>
constexpr Polynomial<kTerms> polynomial(const float (&terms)[kTerms]) {
  Polynomial<kTerms> p{};
  for (int i = 0; i < kTerms; ++i) {
    for (float& copy : p.terms[i]) copy = terms[i];
  }
  return p;
}

// A term to which something will be added. On Arm a multiply-add overwrites its addend: a constant
// in a register would be copied first, by the units that multiply. There it is loaded anew each
// time, which other units do, and which a compiler must not be left to improve: a Neoverse-V1 then
// takes 1.4 cycles for an exponential, and 1.7 otherwise.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V addend([[maybe_unused]] D d, const float (&term)[4]) {
#if HWY_TARGET == HWY_NEON
  float32x4_t x;
  asm volatile("ldr %q0, %1" : "=w"(x) : "m"(term));
  return V{x};
#else
  return hn::Set(d, term[0]);
#endif
}

// p(x) of kCount vectors, step by step side by side.
template <int kTerms, int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void evaluate(D d, const Polynomial<kTerms>& p, const V (&x)[kCount], V (&y)[kCount]) {
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) y[i] = hn::Set(d, p.terms[0][0]);
  HWY_UNROLL(16)
  for (int term = 1; term < kTerms; ++term) {
    HWY_UNROLL(8)
    for (int i = 0; i < kCount; ++i) y[i] = hn::MulAdd(y[i], x[i], addend(d, p.terms[term]));
  }
}
template <int kTerms, class D, class V = hn::Vec<D>>
HWY_INLINE V evaluate(D d, const Polynomial<kTerms>& p, V x) {
  V y = hn::Set(d, p.terms[0][0]);
  HWY_UNROLL(16)
  for (int term = 1; term < kTerms; ++term) {
    y = hn::MulAdd(y, x, hn::Set(d, p.terms[term][0]));
  }
  return y;
}

// 2^f for f in [-0.5, 0.5], exactly 1 at 0: relative error 1e-7 by degree 5, 3e-6 by degree 4.
template <int kDegree>
inline constexpr Polynomial<kDegree + 1> kExp2 = {};
template <>
inline constexpr Polynomial<6> kExp2<5> = polynomial({0.001326472731307149f, 0.009671512991189957f,
                                                      0.05550733581185341f, 0.24022242426872253f,
                                                      0.6931470036506653f, 1.0f});
template <>
inline constexpr Polynomial<5> kExp2<4> = polynomial({0.009582852944731712f, 0.055906426161527634f,
                                                      0.24024099111557007f, 0.6931241750717163f,
                                                      1.0f});

// 1.5 * 2^23 + 127: added to x it rounds x to an integer k and leaves k + 127 in the low bits;
// shifted up they are 2^k.
inline constexpr Polynomial<1> kMagic = polynomial({12583039.0f});

// 2^x for x <= 127, relative error below 2e-7 (4e-6 by degree 4, enough for a bf16 result); exactly
// 1 at 0, exactly 0 below -127 (so -inf gives 0), NaN for NaN. Above 127 undefined: a softmax never
// asks.
template <int kDegree = 5, class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_fast(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  // VSCALEF multiplies by 2^k: two instructions fewer than building 2^k. What would be subnormal is
  // flushed: far below any rounding error, and slow to multiply.
  const V k = V{_mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const V p = evaluate(d, kExp2<kDegree>, hn::Sub(x, k));
  const __mmask16 normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(normal, p.raw, k.raw)};
#else
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, kMagic.terms[0][0]);
  const V t = max_keeping_nan(hn::Set(d, -127.0f), x);
  const V shifted = hn::Add(t, magic);
  const V p = evaluate(d, kExp2<kDegree>, hn::Sub(t, hn::Sub(shifted, magic)));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
#endif
}

// p(-x).
template <int kTerms>
constexpr Polynomial<kTerms> mirrored(Polynomial<kTerms> p) {
  for (int i = kTerms - 2; i >= 0; i -= 2) {
    for (float& copy : p.terms[i]) copy = -copy;
  }
  return p;
}
template <int kDegree>
inline constexpr Polynomial<kDegree + 1> kExp2Minus = mirrored(kExp2<kDegree>);

// What x times a positive scale makes -127 or about it, below which exp2_scaled gives 0.
inline float least_exponent(float scale) { return -127.0f / scale; }

// x = 2^(scale x) of kCount vectors with scale x <= 127, as exp2_fast. On Arm step by step side by
// side, since it finds too little to do in one vector after the other; `least` is
// least_exponent(scale), and one fused multiply-add leaves the product less its whole number.
template <int kDegree, int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_scaled(D d, V scale, [[maybe_unused]] V least, V (&x)[kCount]) {
#if HWY_TARGET == HWY_NEON
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, kMagic.terms[0][0]);
  V power[kCount], p[kCount];
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) x[i] = max_keeping_nan(least, x[i]);
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    power[i] = hn::MulAdd(x[i], scale, addend(d, kMagic.terms[0]));
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    x[i] = hn::NegMulAdd(x[i], scale, hn::Sub(power[i], magic));
  }
  evaluate(d, kExp2Minus<kDegree>, x, p);
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    x[i] = hn::Mul(p[i], hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, power[i]))));
  }
#else
  HWY_UNROLL(4)
  for (int i = 0; i < kCount; ++i) x[i] = exp2_fast<kDegree>(d, hn::Mul(x[i], scale));
#endif
}

template <int kDegree, int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_each(D d, V (&x)[kCount]) {
  exp2_scaled<kDegree>(d, hn::Set(d, 1.0f), hn::Set(d, least_exponent(1)), x);
}

// y = 2^(a (h - minus_rest)) for kCount vectors, a h from -127 to 0 and what is left out of h much
// smaller: relative error 5e-7, also where a h is large and its rounding alone would take more. One
// fused multiply-add leaves the product less its whole number k, exactly. 0 where k is -127, NaN
// for NaN.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_product(D d, const V (&a)[kCount], const V (&h)[kCount],
                             const V (&minus_rest)[kCount], V (&y)[kCount]) {
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, kMagic.terms[0][0]);
  V power[kCount], minus_f[kCount];
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) power[i] = hn::Add(hn::Mul(h[i], a[i]), magic);
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    minus_f[i] = hn::NegMulAdd(h[i], a[i], hn::Sub(power[i], magic));
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) minus_f[i] = hn::MulAdd(minus_rest[i], a[i], minus_f[i]);
  evaluate(d, kExp2Minus<5>, minus_f, y);
  HWY_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    y[i] = hn::Mul(y[i], hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, power[i]))));
  }
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_product(D d, V a, V h, V minus_rest) {
  V y[1];
  const V of_a[1] = {a}, of_h[1] = {h}, of_rest[1] = {minus_rest};
  exp2_product(d, of_a, of_h, of_rest, y);
  return y[0];
}

// tanh(x), relative error below 4e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_fast(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  // Small: an odd polynomial. Elsewhere 1 - 2 / (e^2|x| + 1), which would cancel near 0.
  const V u = hn::Mul(x, x);
  V small = hn::MulAdd(hn::Set(d, -0.005717045161873102f), u, hn::Set(d, 0.02065058797597885f));
  small = hn::MulAdd(small, u, hn::Set(d, -0.05374349653720856f));
  small = hn::MulAdd(small, u, hn::Set(d, 0.13331490755081177f));
  small = hn::MulAdd(small, u, hn::Set(d, -0.3333328366279602f));
  small = hn::MulAdd(hn::Mul(small, u), x, x);
  const V bounded = hn::Min(hn::Set(d, 10.0f), magnitude);  // tanh(10) == 1 in f32
  const V e = exp2_fast(d, hn::Mul(bounded, hn::Set(d, 2.8853900817779268f)));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  const V result =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
  return hn::IfThenElse(hn::Eq(x, x), result, x);  // NaN stays NaN
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
