// What ops_test.cpp does with a row of the operator table.
#pragma once

#include <cstdint>
#include <string>

#include "support/op_table.h"

namespace qkv::test {

// How an input lies in memory; what is between its elements is NaN.
enum class Strides : std::uint8_t { row_major, reversed, gaps };
inline constexpr Strides kStrides[] = {Strides::row_major, Strides::reversed, Strides::gaps};

struct OpInputs {
  Tensors tensors;
  Arrays arrays;  // the same values
};
OpInputs make_op_inputs(const OpRow& row, const Shapes& shapes, DType dtype, Strides strides);

// Outputs, and gradients of sum(output * dy) over all outputs by the tape; dy is drawn.
struct OpGradients {
  Tensors outputs, gradients;  // one gradient per input
};
OpGradients run_with_tape(const OpRow& row, const Tensors& inputs);

// Gradients of the reference by central differences; NaN for elements that were not looked at.
Arrays difference_quotients(const OpRow& row, const Arrays& inputs);

// Empty when `got` is as close to `expected` as its dtype allows; else what is not.
std::string compare_output(const OpRow& row, const Tensor& got, const Array& expected);
std::string compare_gradient(const Tensor& got, const Array& expected, DType dtype, double terms);

Rounding rounding_of(DType dtype);

}  // namespace qkv::test
