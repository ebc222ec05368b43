// Tensors as plain vectors, for comparisons.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Every element in row-major order as float64; empty for an undefined tensor.
std::vector<double> values_of(const Tensor& x);

// The bytes of every element in row-major order, for comparisons bit by bit.
std::vector<std::uint8_t> bytes_of(const Tensor& x);

// |a - b| / |b|, as lengths of vectors.
double relative_distance(const Tensor& a, const Tensor& b);

// The largest |a - b|; infinite where one of them is NaN.
double largest_difference(const Tensor& a, const Tensor& b);

// x on another device with its strides and with what lies between its elements.
Tensor on_device(const Tensor& x, Device device);

}  // namespace qkv::test
