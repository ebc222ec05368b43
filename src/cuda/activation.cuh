// The functions of qkv/activation.h and their derivatives. At infinity the limit, NaN for NaN.
#pragma once

#include <cuda_runtime_api.h>

#include "qkv/activation.h"

namespace qkv::cuda {

__device__ inline float sigmoid(float x) {
  // Neither side by cancellation: e^-|x| only shrinks.
  const float e = expf(-fabsf(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}
// sigmoid(x) sigmoid(-x)
__device__ inline float sigmoid_slope(float x) {
  const float e = expf(-fabsf(x)), share = 1.0f / (1.0f + e);
  return e * share * share;
}

// x times a factor that vanishes at -inf.
__device__ inline float times(float x, float factor) {
  return (x < -3.4028234e38f ? -3.4028234e38f : x) * factor;
}
__device__ inline float bounded(float x, float bound) {
  return x > bound ? bound : x < -bound ? -bound : x;  // NaN stays
}

inline constexpr float kSqrtHalf = 0.70710678f, kInverseSqrt2Pi = 0.39894228f;
inline constexpr float kGeluTanhSlope = 1.59576912f, kGeluTanhCube = 0.044715f;

// gelu_tanh(x) = x sigmoid(2 u), with tanh(u) = 2 sigmoid(2 u) - 1.
__device__ inline float gelu_tanh_inner(float x) {
  const float t = bounded(x, 20.0f);
  return kGeluTanhSlope * t * (1 + kGeluTanhCube * t * t);
}

template <Activation kFunction>
__device__ float apply(float x) {
  if constexpr (kFunction == Activation::relu) {
    return x > 0 || isnan(x) ? x : 0.0f;
  } else if constexpr (kFunction == Activation::gelu) {
    return times(x, 0.5f * erfcf(-x * kSqrtHalf));
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    return times(x, sigmoid(gelu_tanh_inner(x)));
  } else if constexpr (kFunction == Activation::silu) {
    return times(x, sigmoid(x));
  } else if constexpr (kFunction == Activation::tanh) {
    return tanhf(x);
  } else {
    return x;
  }
}

// relu has 0 at 0.
template <Activation kFunction>
__device__ float apply_derivative(float x) {
  if constexpr (kFunction == Activation::relu) {
    return isnan(x) ? x : x > 0 ? 1.0f : 0.0f;
  } else if constexpr (kFunction == Activation::gelu) {
    const float t = bounded(x, 20.0f);
    return 0.5f * erfcf(-x * kSqrtHalf) + t * kInverseSqrt2Pi * expf(-0.5f * t * t);
  } else if constexpr (kFunction == Activation::gelu_tanh) {
    const float t = bounded(x, 20.0f), inner = gelu_tanh_inner(x);
    const float slope = kGeluTanhSlope * (1 + 3 * kGeluTanhCube * t * t);
    // sigmoid(inner) and its slope out of one exponential.
    const float e = expf(-fabsf(inner)), share = 1.0f / (1.0f + e);
    return (inner < 0 ? e : 1.0f) * share + t * slope * e * share * share;
  } else if constexpr (kFunction == Activation::silu) {
    return sigmoid(x) + bounded(x, 200.0f) * sigmoid_slope(x);
  } else if constexpr (kFunction == Activation::tanh) {
    return 4 * sigmoid_slope(2 * x);  // 1 - tanh^2, without cancellation
  } else {
    return 1;
  }
}

// Calls f.template operator()<kFunction>().
template <class F>
void dispatch_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::none: return f.template operator()<Activation::none>();
    case Activation::relu: return f.template operator()<Activation::relu>();
    case Activation::gelu: return f.template operator()<Activation::gelu>();
    case Activation::gelu_tanh: return f.template operator()<Activation::gelu_tanh>();
    case Activation::silu: return f.template operator()<Activation::silu>();
    case Activation::tanh: return f.template operator()<Activation::tanh>();
  }
}

}  // namespace qkv::cuda
