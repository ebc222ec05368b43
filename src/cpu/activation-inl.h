// The functions of qkv/activation.h and their derivatives for vectors of f32. Per-target code:
// included once per SIMD target.
//
// Relative error below 1e-6, also far below zero, where gelu and silu are products of something
// large and something tiny; up to 2e-5 where the result is about to underflow (e^-x of a large x
// that is itself rounded: gelu_tanh, and targets without a fused multiply-add). At infinity the
// limit, NaN for NaN.
#if defined(QKV_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_ACTIVATION_INL_H_
#undef QKV_CPU_ACTIVATION_INL_H_
#else
#define QKV_CPU_ACTIVATION_INL_H_
#endif

#include <limits>

#include "cpu/exp-inl.h"
#include "hwy/highway.h"
#include "qkv/activation.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// log2(e) as a float and what the float leaves out.
inline constexpr float kLog2E = 1.44269504f, kLog2ERest = 1.92596299e-8f;

// e^-(y + rest), y >= 0, 0 <= rest << y, exactly 0 from y = 88 on. The product with log2(e) is
// rounded at 2^-18 for the largest y; what the rounding took is given back to first order.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_minus(D d, V y, V rest) {
  const V log2e = hn::Set(d, kLog2E);
  const V product = hn::Mul(y, log2e);
  V lost = hn::MulSub(y, log2e, product);  // 0 without a fused multiply-add
  lost = hn::MulAdd(y, hn::Set(d, kLog2ERest), lost);
  lost = hn::MulAdd(rest, log2e, lost);
  const V e = exp2_fast(d, hn::Neg(product));
  return hn::NegMulAdd(hn::Mul(lost, hn::Set(d, 0.693147181f)), e, e);
}

// x with a magnitude of at most `bound`, where nothing changes any more; NaN stays.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V bounded(D d, V x, float bound) {
  return max_keeping_nan(hn::Set(d, -bound), min_keeping_nan(hn::Set(d, bound), x));
}
// -inf to the lowest finite number: a function that vanishes there multiplies x by 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_below(D d, V x) {
  return max_keeping_nan(hn::Set(d, std::numeric_limits<float>::lowest()), x);
}

// Of a normal variable: `tail`, the probability of more than |x|, and e^(-x^2 / 2).
template <class V>
struct NormalTail {
  V tail, density;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE NormalTail<V> normal_tail(D d, V x) {
  const V a = hn::Abs(bounded(d, x, 20.0f));
  const V half = hn::Mul(a, hn::Set(d, 0.5f));
  const V square = hn::Mul(a, half);
  const V e = exp_minus(d, square, hn::MulSub(a, half, square));
  // tail / e = u R(u) with u = 4 / (a + 4): relative error 5e-8 up to a = 13.3, where e is 0.
  const V u = hn::Div(hn::Set(d, 4.0f), hn::Add(a, hn::Set(d, 4.0f)));
  V p = hn::MulAdd(hn::Set(d, 0.026532333344221115f), u, hn::Set(d, -0.15681113302707672f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.304559588432312f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.21566574275493622f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.20877580344676971f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.029840558767318726f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.10456696152687073f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.09839670360088348f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.09980490058660507f));
  return {hn::Mul(hn::Mul(p, u), e), e};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  const V u = hn::Mul(x, x);
  V small = hn::MulAdd(hn::Set(d, -0.0006090367096476257f), u, hn::Set(d, 0.005011964123696089f));
  small = hn::MulAdd(small, u, hn::Set(d, -0.02677891030907631f));
  small = hn::MulAdd(small, u, hn::Set(d, 0.11282140761613846f));
  small = hn::MulAdd(small, u, hn::Set(d, -0.3761252462863922f));
  small = hn::MulAdd(small, u, hn::Set(d, 1.1283791065216064f));
  const V tail = normal_tail(d, hn::Mul(x, hn::Set(d, 1.41421356f))).tail;
  const V large = hn::CopySign(hn::NegMulAdd(hn::Set(d, 2.0f), tail, hn::Set(d, 1.0f)), x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.9f)), hn::Mul(small, x), large);
}

// sigmoid(x) and 1 - sigmoid(x), neither by cancellation.
template <class V>
struct Sigmoid {
  V value, complement;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoid<V> sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = exp_minus(d, hn::Abs(bounded(d, x, 200.0f)), hn::Zero(d));
  const V near = hn::Div(one, hn::Add(one, e)), far = hn::Mul(near, e);
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, far, near), hn::IfThenElse(negative, near, far)};
}

inline constexpr float kGeluTanhSlope = 1.59576912f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluTanhCube = 0.044715f;

// gelu_tanh(x) = x sigmoid(2 u), with tanh(u) = 2 sigmoid(2 u) - 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoid<V> gelu_tanh_sigmoid(D d, V x) {  // |x| bounded: the cube must not overflow
  const V factor = hn::MulAdd(hn::Mul(x, x), hn::Set(d, kGeluTanhCube), hn::Set(d, 1.0f));
  return sigmoid(d, hn::Mul(hn::Mul(x, hn::Set(d, kGeluTanhSlope)), factor));
}

template <Activation kFunction, class D, class V = hn::Vec<D>>
HWY_INLINE V apply(D d, V x) {
  if constexpr (kFunction == Activation::relu) {
    return max_keeping_nan(hn::Zero(d), x);
  } else if constexpr (kFunction == Activation::gelu) {
    const V tail = normal_tail(d, x).tail;
    const V below = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
    return hn::Mul(finite_below(d, x), below);
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    return hn::Mul(finite_below(d, x), gelu_tanh_sigmoid(d, bounded(d, x, 20.0f)).value);
  } else if constexpr (kFunction == Activation::silu) {
    return hn::Mul(finite_below(d, x), sigmoid(d, x).value);
  } else if constexpr (kFunction == Activation::tanh) {
    return tanh_fast(d, x);
  } else {
    return x;
  }
}

// The derivative of apply<kFunction> at x; relu has 0 at 0.
template <Activation kFunction, class D, class V = hn::Vec<D>>
HWY_INLINE V apply_derivative(D d, V x) {
  const V one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  if constexpr (kFunction == Activation::relu) {
    return hn::IfThenElse(hn::Le(x, zero), zero, hn::IfThenElse(hn::Eq(x, x), one, x));
  } else if constexpr (kFunction == Activation::gelu) {
    const NormalTail<V> normal = normal_tail(d, x);
    const V below = hn::IfThenElse(hn::Lt(x, zero), normal.tail, hn::Sub(one, normal.tail));
    const V slope = hn::Mul(bounded(d, x, 20.0f), hn::Set(d, 0.39894228f));  // x / sqrt(2 pi)
    return hn::MulAdd(slope, normal.density, below);
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    const V t = bounded(d, x, 20.0f);
    const Sigmoid<V> s = gelu_tanh_sigmoid(d, t);
    const V inner = hn::MulAdd(hn::Mul(t, t), hn::Set(d, 3 * kGeluTanhCube * kGeluTanhSlope),
                               hn::Set(d, kGeluTanhSlope));
    return hn::MulAdd(hn::Mul(hn::Mul(t, inner), s.complement), s.value, s.value);
  } else if constexpr (kFunction == Activation::silu) {
    const Sigmoid<V> s = sigmoid(d, x);
    return hn::MulAdd(hn::Mul(bounded(d, x, 200.0f), s.complement), s.value, s.value);
  } else if constexpr (kFunction == Activation::tanh) {
    const Sigmoid<V> s = sigmoid(d, hn::Add(x, x));  // 1 - tanh^2(x) = 4 s (1 - s)
    return hn::Mul(hn::Mul(hn::Set(d, 4.0f), s.value), s.complement);
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
