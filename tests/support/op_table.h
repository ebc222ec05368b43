// The table of operators: one row gives an operator its comparisons with float64, its gradients
// against finite differences, CPU against CUDA, and the same bits at any number of threads
// (ops_test.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::test {

using Tensors = std::vector<Tensor>;
using Shapes = std::vector<Shape>;

// A tensor of the reference: float64, row-major.
struct Array {
  Shape shape{};
  std::vector<double> values{};

  Array() = default;
  explicit Array(const Shape& s) : shape(s), values(static_cast<std::size_t>(s.numel())) {}
  std::int64_t size(int axis) const { return shape[axis]; }
  std::int64_t rows() const;  // of the last axis
  double& operator[](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
};
using Arrays = std::vector<Array>;

Shape with_extent(const Shape& shape, int axis, std::int64_t extent);
// The element of `inner` that stands at element `at` (row-major) of `outer` when it is broadcast.
std::int64_t broadcast_index(const Shape& inner, const Shape& outer, std::int64_t at);
Shape broadcast_of(const Shape& a, const Shape& b);
Array map(const Array& x, const std::function<double(double)>& f);

inline constexpr DType kFloatTypes[] = {DType::f32, DType::bf16, DType::f16};

// What a dtype keeps of a number: the identity for f32.
using Rounding = std::function<double(double)>;

struct OpRow {
  std::string name;
  // Floating inputs in, floating outputs out. What else the operator takes (ids, angles, a seed) is
  // a function of the shapes.
  std::function<Tensors(const Tensors&)> op;
  std::function<Arrays(const Arrays&, const Rounding&)> reference;
  std::vector<Shapes> shapes;  // of the inputs; odd sizes, one, none
  Shapes large;                // enough work for many threads; gradients included
  std::size_t f32_from = 99;   // inputs from this one on are f32 whatever the dtype
  // Errors of sums follow the size of their terms, which may be larger than any result.
  double terms = 1;
  // Of 16-bit results: more than one where products take their operands in 16 bits.
  double roundings = 1;
};

// What a failing test prints; its name says the rest.
inline void PrintTo(const OpRow& row, std::ostream* out) { *out << row.name; }

// All rows.
const std::vector<OpRow>& op_table();

std::vector<OpRow> view_rows();
std::vector<OpRow> elementwise_rows();
std::vector<OpRow> product_rows();
std::vector<OpRow> layer_rows();
std::vector<OpRow> linear_attention_rows();

// What dropout(x, rate, seed) multiplies element i by.
double dropout_factor(std::int64_t i, double rate, std::uint64_t seed);

// Ids and targets of the rows that need some: every value of [0, bound) turns up, in no order.
std::vector<std::int64_t> some_ids(std::int64_t count, std::int64_t bound);

}  // namespace qkv::test
