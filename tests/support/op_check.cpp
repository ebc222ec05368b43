#include "support/op_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv::test {
namespace {

constexpr std::int64_t kProbes = 48;  // elements of an input that are moved

// y = x, one element at a time: by no kernel, since those are what is tested.
void place(const Tensor& x, const Tensor& y) {
  const std::size_t item = size_of(x.dtype());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      at += rest % x.size(axis) * y.stride(axis);
      rest /= x.size(axis);
    }
    std::memcpy(static_cast<std::byte*>(y.raw()) + at * static_cast<std::int64_t>(item),
                from + static_cast<std::size_t>(i) * item, item);
  }
}

Tensor laid(const Tensor& x, Strides strides) {
  if (strides == Strides::row_major || x.rank() == 0) return x;
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  std::vector<int> back;
  if (strides == Strides::reversed) {
    std::reverse(extents.begin(), extents.end());
    for (int axis = x.rank() - 1; axis >= 0; --axis) back.push_back(axis);
    const Tensor store = Tensor::full(Shape(extents), kNan, {x.dtype()});
    Tensor y = permute(store, back);
    place(x, y);
    return y;
  }
  for (std::int64_t& extent : extents) extent += 2;
  Tensor y = Tensor::full(Shape(extents), kNan, {x.dtype()});
  for (int axis = 0; axis < x.rank(); ++axis) y = slice(y, axis, 1, 1 + x.size(axis));
  place(x, y);
  return y;
}

double loss_of(const OpRow& row, const Arrays& inputs, const Arrays& dys) {
  const Arrays outputs = row.reference(inputs, [](double x) { return x; });
  double loss = 0;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    for (std::int64_t i = 0; i < outputs[k].shape.numel(); ++i) loss += outputs[k][i] * dys[k][i];
  }
  return loss;
}

Tensor dy_like(const Shape& shape, DType dtype, std::size_t output, Device device = kCpu) {
  // Numbers that every dtype holds, so that one draw serves them all.
  Generator random(77 + output);
  return to(to(random.normal(shape, 0, 1, DType::bf16), dtype), device);
}

Array array_of(const Tensor& x) {
  Array a(x.shape());
  a.values = values_of(x);
  return a;
}

struct Tolerance {
  double relative, absolute;
};

std::string differences(const Tensor& got, const Array& expected, const Tolerance& allowed) {
  if (!got.defined()) return "is undefined";
  if (!(got.shape() == expected.shape)) {
    return fmt::format("has shape {}, not {}", to_string(got.shape()), to_string(expected.shape));
  }
  double largest = 1;
  for (const double value : expected.values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const std::vector<double> values = values_of(got);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double want = expected.values[i];
    if (std::isnan(want)) continue;
    const double bound = allowed.relative * std::abs(want) + allowed.absolute * largest;
    if (!(std::abs(values[i] - want) <= bound)) {
      return fmt::format("element {} is {}, not {} (off by {:.3g}, {:.3g} allowed)", i, values[i],
                         want, std::abs(values[i] - want), bound);
    }
  }
  return {};
}

}  // namespace

Rounding rounding_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return [](double x) { return double{static_cast<float>(bf16(static_cast<float>(x)))}; };
    case DType::f16:
      return [](double x) { return double{static_cast<float>(f16(static_cast<float>(x)))}; };
    default: return [](double x) { return x; };
  }
}

OpInputs make_op_inputs(const OpRow& row, const Shapes& shapes, DType dtype, Strides strides) {
  OpInputs inputs;
  Generator random(5);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Tensor x = random.normal(shapes[i], 0, 1, i >= row.f32_from ? DType::f32 : dtype);
    inputs.arrays.push_back(array_of(x));
    inputs.tensors.push_back(laid(x, i >= row.f32_from ? Strides::row_major : strides));
  }
  return inputs;
}

OpGradients run_with_tape(const OpRow& row, const Tensors& inputs) {
  OpGradients result;
  Tape tape;
  result.outputs = row.op(inputs);
  Gradients gradients;
  if (result.outputs.size() == 1) {
    const Tensor& y = result.outputs[0];
    if (tape.size() == 0) return result;  // the operator had nothing to do
    gradients = tape.backward(y, dy_like(y.shape(), y.dtype(), 0, y.device()));
  } else {
    Tensor loss;
    for (std::size_t k = 0; k < result.outputs.size(); ++k) {
      const Tensor& y = result.outputs[k];
      const Tensor dy = dy_like(y.shape(), y.dtype(), k, y.device());
      const Tensor term = sum(to(mul(y, dy), DType::f32));
      loss = k == 0 ? term : add(loss, term);
    }
    gradients = tape.backward(loss);
  }
  for (const Tensor& x : inputs) result.gradients.push_back(gradients[x]);
  return result;
}

Arrays difference_quotients(const OpRow& row, const Arrays& inputs) {
  Arrays dys;
  for (const Array& y : row.reference(inputs, [](double x) { return x; })) {
    dys.push_back(array_of(dy_like(y.shape, DType::f32, dys.size())));
  }
  Arrays moved = inputs, quotients;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    Array quotient(inputs[k].shape);
    const std::int64_t count = quotient.shape.numel();
    const std::int64_t step = std::max<std::int64_t>(1, count / kProbes);
    std::fill(quotient.values.begin(), quotient.values.end(), kNan);
    for (std::int64_t i = 0; i < count; i += step) {
      constexpr double kMove = 1e-5;
      moved[k][i] = inputs[k][i] + kMove;
      const double above = loss_of(row, moved, dys);
      moved[k][i] = inputs[k][i] - kMove;
      quotient[i] = (above - loss_of(row, moved, dys)) / (2 * kMove);
      moved[k][i] = inputs[k][i];
    }
    quotients.push_back(std::move(quotient));
  }
  return quotients;
}

std::string compare_output(const OpRow& row, const Tensor& got, const Array& expected) {
  // f32 sums err with their terms; a 16-bit result is one rounding of that, half a step.
  const double step = got.dtype() == DType::bf16  ? 0x1.02p-8
                      : got.dtype() == DType::f16 ? 0x1.02p-11
                                                  : 1e-6;
  const double more = got.dtype() == DType::f32 ? 0 : (row.roundings - 1) * step;
  return differences(got, expected, {step, 5e-7 * row.terms + more});
}

std::string compare_gradient(const Tensor& got, const Array& expected, DType dtype, double terms) {
  // dy, what forward kept and the gradient itself are rounded.
  const double step = dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 2e-6;
  return differences(got, expected, {step, step * terms});
}

}  // namespace qkv::test
