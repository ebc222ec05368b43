// The functions of qkv/activation.h and their derivatives for vectors of f32. Per-target code:
// included once per SIMD target.
//
// Relative error below 1e-6, also far below zero, where gelu and silu are products of something
// large and something tiny; up to 2e-5 where the result is about to underflow (e^-x of a large x
// that is itself rounded: gelu_tanh, and targets without a fused multiply-add). At infinity the
// limit, NaN for NaN. V is a vector, or several (several-inl.h).
#if defined(QKV_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_ACTIVATION_INL_H_
#undef QKV_CPU_ACTIVATION_INL_H_
#else
#define QKV_CPU_ACTIVATION_INL_H_
#endif

#include <limits>

#include "cpu/exp-inl.h"
#include "cpu/several-inl.h"
#include "hwy/highway.h"
#include "qkv/activation.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// log2(e) as a float and what the float leaves out.
inline constexpr float kLog2E = 1.44269504f, kLog2ERest = 1.92596299e-8f;

// e^-y for y >= 0 (or a rounding below), exactly 0 from y = 88 on.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_minus(D d, V y) {
  const V a = min_keeping_nan(Set(d, 88.0f), y);
  return exp2_product(d, a, Set(d, -kLog2E), Set(d, kLog2ERest));
}

// x with a magnitude of at most `bound`, where nothing changes any more; NaN stays.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V bounded(D d, V x, float bound) {
  return max_keeping_nan(Set(d, -bound), min_keeping_nan(Set(d, bound), x));
}
// -inf to the lowest finite number: a function that vanishes there multiplies x by 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_below(D d, V x) {
  return max_keeping_nan(Set(d, std::numeric_limits<float>::lowest()), x);
}

inline constexpr Polynomial<9> kNormalTail =
    polynomial({0.026532333344221115f, -0.15681113302707672f, 0.304559588432312f,
                -0.21566574275493622f, 0.20877580344676971f, 0.029840558767318726f,
                0.10456696152687073f, 0.09839670360088348f, 0.09980490058660507f});

// Of a normal variable: `tail`, the probability of more than |x|, and e^(-x^2 / 2); |x| itself,
// where it still matters.
template <class V>
struct NormalTail {
  V tail, density, magnitude;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE NormalTail<V> normal_tail(D d, V x) {
  const V a = min_keeping_nan(Set(d, 13.25f), Abs(x));  // where e is 0
  // tail / e = u R(u) with u = 4 / (a + 4): relative error 5e-8. The division first: it takes
  // longest, and the exponential does not wait for it.
  const V u = Div(Set(d, 4.0f), Add(a, Set(d, 4.0f)));
  const V slope = Set(d, -kLog2E / 2), half = Mul(a, slope);  // e = 2^(a half)
  const V minus_rest = MulAdd(a, Set(d, kLog2ERest / 2), NegMulAdd(a, slope, half));
  const V e = exp2_product(d, a, half, minus_rest);
  const V p = evaluate(d, kNormalTail, u);
  return {Mul(Mul(p, u), e), e, a};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  const V u = Mul(x, x);
  V small = MulAdd(Set(d, -0.0006090367096476257f), u, Set(d, 0.005011964123696089f));
  small = MulAdd(small, u, Set(d, -0.02677891030907631f));
  small = MulAdd(small, u, Set(d, 0.11282140761613846f));
  small = MulAdd(small, u, Set(d, -0.3761252462863922f));
  small = MulAdd(small, u, Set(d, 1.1283791065216064f));
  const V tail = normal_tail(d, Mul(x, Set(d, 1.41421356f))).tail;
  const V large = CopySign(NegMulAdd(Set(d, 2.0f), tail, Set(d, 1.0f)), x);
  return IfThenElse(Lt(Abs(x), Set(d, 0.9f)), Mul(small, x), large);
}

// sigmoid(x) and 1 - sigmoid(x), neither by cancellation.
template <class V>
struct Sigmoid {
  V value, complement;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoid<V> sigmoid(D d, V x) {
  const V one = Set(d, 1.0f);
  const V e = exp_minus(d, Abs(x));
  const V near = Div(one, Add(one, e)), far = Mul(near, e);
  const auto negative = Lt(x, Zero(d));
  return {IfThenElse(negative, far, near), IfThenElse(negative, near, far)};
}

inline constexpr float kGeluTanhSlope = 1.59576912f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluTanhCube = 0.044715f;

// gelu_tanh(x) = x sigmoid(2 u), with tanh(u) = 2 sigmoid(2 u) - 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoid<V> gelu_tanh_sigmoid(D d, V x) {  // |x| bounded: the cube must not overflow
  const V factor = MulAdd(Mul(x, x), Set(d, kGeluTanhCube), Set(d, 1.0f));
  return sigmoid(d, Mul(Mul(x, Set(d, kGeluTanhSlope)), factor));
}

template <Activation kFunction, class D, class V = hn::Vec<D>>
HWY_INLINE V apply(D d, V x) {
  if constexpr (kFunction == Activation::relu) {
    return max_keeping_nan(Zero(d), x);
  } else if constexpr (kFunction == Activation::gelu) {
    const NormalTail<V> normal = normal_tail(d, x);
    return NegMulAdd(normal.magnitude, normal.tail, max_keeping_nan(Zero(d), x));
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    return Mul(finite_below(d, x), gelu_tanh_sigmoid(d, bounded(d, x, 20.0f)).value);
  } else if constexpr (kFunction == Activation::silu) {
    return Mul(finite_below(d, x), sigmoid(d, x).value);
  } else if constexpr (kFunction == Activation::tanh) {
    return tanh_fast(d, x);
  } else {
    return x;
  }
}

// apply<kFunction> of several vectors, in place.
template <Activation kFunction, int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void apply_each(D d, V (&x)[kCount]) {
  constexpr bool kIsLong = kFunction == Activation::gelu || kFunction == Activation::gelu_tanh ||
                           kFunction == Activation::silu;
  if constexpr (kIsLong && kCount > 1) {
    Several<kCount> all;
    HWY_UNROLL(4)
    for (int i = 0; i < kCount; ++i) all.of[i] = x[i];
    all = apply<kFunction>(SeveralTag<kCount>(), all);
    HWY_UNROLL(4)
    for (int i = 0; i < kCount; ++i) x[i] = all.of[i];
  } else {
    HWY_UNROLL(4)
    for (int i = 0; i < kCount; ++i) x[i] = apply<kFunction>(d, x[i]);
  }
}

// The derivative of apply<kFunction> at x; relu has 0 at 0.
template <Activation kFunction, class D, class V = hn::Vec<D>>
HWY_INLINE V apply_derivative(D d, V x) {
  const V one = Set(d, 1.0f), zero = Zero(d);
  if constexpr (kFunction == Activation::relu) {
    return IfThenElse(Le(x, zero), zero, IfThenElse(Eq(x, x), one, x));
  } else if constexpr (kFunction == Activation::gelu) {
    const NormalTail<V> normal = normal_tail(d, x);
    const V below = IfThenElse(Lt(x, zero), normal.tail, Sub(one, normal.tail));
    const V slope = Mul(bounded(d, x, 20.0f), Set(d, 0.39894228f));  // x / sqrt(2 pi)
    return MulAdd(slope, normal.density, below);
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    const V t = bounded(d, x, 20.0f);
    const Sigmoid<V> s = gelu_tanh_sigmoid(d, t);
    const V inner =
        MulAdd(Mul(t, t), Set(d, 3 * kGeluTanhCube * kGeluTanhSlope), Set(d, kGeluTanhSlope));
    return MulAdd(Mul(Mul(t, inner), s.complement), s.value, s.value);
  } else if constexpr (kFunction == Activation::silu) {
    const Sigmoid<V> s = sigmoid(d, x);
    return MulAdd(Mul(bounded(d, x, 200.0f), s.complement), s.value, s.value);
  } else if constexpr (kFunction == Activation::tanh) {
    const Sigmoid<V> s = sigmoid(d, Add(x, x));  // 1 - tanh^2(x) = 4 s (1 - s)
    return Mul(Mul(Set(d, 4.0f), s.value), s.complement);
  } else {
    return one;
  }
}

// Calls body.template operator()<kFunction>(): from a run-time activation to a constant. The body
// is a struct, or a lambda marked HWY_ATTR.
template <class Body>
HWY_INLINE void dispatch_activation(Activation function, Body&& body) {
  switch (function) {
    case Activation::none: return body.template operator()<Activation::none>();
    case Activation::relu: return body.template operator()<Activation::relu>();
    case Activation::gelu: return body.template operator()<Activation::gelu>();
    case Activation::gelu_tanh: return body.template operator()<Activation::gelu_tanh>();
    case Activation::silu: return body.template operator()<Activation::silu>();
    case Activation::tanh: return body.template operator()<Activation::tanh>();
  }
}

// For a vector at a time, where the function is known only at run time.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V apply(Activation function, D d, V x) {
  V y = x;
  dispatch_activation(function,
                      [&]<Activation kFunction>() HWY_ATTR { y = apply<kFunction>(d, x); });
  return y;
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V apply_derivative(Activation function, D d, V x) {
  V y = x;
  dispatch_activation(
      function, [&]<Activation kFunction>() HWY_ATTR { y = apply_derivative<kFunction>(d, x); });
  return y;
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
