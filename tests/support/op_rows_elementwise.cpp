// Rows of the operator table: element by element, and along rows.
#include <cmath>
#include <numbers>

#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/op_table.h"

namespace qkv::test {
namespace {

double activated(Activation f, double x) {
  switch (f) {
    case Activation::relu: return std::max(x, 0.0);
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
    default: return x;
  }
}

constexpr Activation kActivations[] = {Activation::none,      Activation::relu, Activation::gelu,
                                       Activation::gelu_tanh, Activation::silu, Activation::tanh};

OpRow activation_row(Activation f) {
  OpRow row;
  row.name = "activate_" + to_string(f);
  // Spread out, so that saturation is seen as well.
  row.op = [f](const Tensors& in) { return Tensors{activate(scale(in[0], 4), f)}; };
  row.reference = [f](const Arrays& in, const Rounding& round) {
    return Arrays{map(in[0], [&](double x) { return activated(f, round(4 * x)); })};
  };
  row.shapes = {{{3, 37}}, {{1}}, {{2, 0}}, {{2, 65}}};
  row.large = {{33, 3001}};
  return row;
}

OpRow gated_row(Activation f) {
  OpRow row;
  row.name = "gated_" + to_string(f);
  row.op = [f](const Tensors& in) {
    // The halves of one product, as a fused projection gives them, and two tensors.
    const std::int64_t half = in[0].size(-1) / 2;
    return Tensors{gated(slice(in[0], -1, 0, half), slice(in[0], -1, half, 2 * half), f),
                   gated(in[1], in[2], f)};
  };
  row.reference = [f](const Arrays& in, const Rounding&) {
    const std::int64_t width = in[0].size(-1), half = width / 2;
    Array halves(with_extent(in[0].shape, -1, half)), pair(in[1].shape);
    for (std::int64_t i = 0; i < halves.shape.numel(); ++i) {
      const std::int64_t at = i / half * width + i % half;
      halves[i] = activated(f, in[0][at]) * in[0][at + half];
    }
    for (std::int64_t i = 0; i < pair.shape.numel(); ++i) {
      pair[i] = activated(f, in[1][i]) * in[2][i];
    }
    return Arrays{halves, pair};
  };
  row.shapes = {{{3, 2, 10}, {3, 5}, {3, 5}},
                {{1, 2}, {1}, {1}},
                {{2, 66}, {2, 33}, {2, 33}},
                {{0, 4}, {2, 0}, {2, 0}}};
  row.large = {{33, 2002}, {33, 1001}, {33, 1001}};
  return row;
}

OpRow binary_row(const std::string& name, Tensor (*op)(const Tensor&, const Tensor&),
                 double (*f)(double, double)) {
  OpRow row;
  row.name = name;
  row.op = [op](const Tensors& in) { return Tensors{op(in[0], in[1])}; };
  row.reference = [f](const Arrays& in, const Rounding&) {
    Array y(broadcast_of(in[0].shape, in[1].shape));
    for (std::int64_t i = 0; i < y.shape.numel(); ++i) {
      y[i] = f(in[0][broadcast_index(in[0].shape, y.shape, i)],
               in[1][broadcast_index(in[1].shape, y.shape, i)]);
    }
    return Arrays{y};
  };
  row.shapes = {{{3, 5, 7}, {3, 5, 7}},
                {{4, 33}, {33}},
                {{33}, {4, 33}},
                {{2, 5, 9}, {}},
                {{3, 1, 7}, {5, 1}},
                {{2, 9, 1}, {2, 1, 9}},
                {{1}, {1}},
                {{}, {}},
                {{0, 5}, {5}},
                {{2, 3, 4, 5}, {2, 1, 4, 1}}};
  row.large = {{7, 150, 101}, {150, 101}};
  row.terms = 8;
  return row;
}

OpRow scale_row() {
  OpRow row;
  row.name = "scale";
  row.op = [](const Tensors& in) { return Tensors{scale(in[0], -0.37)}; };
  row.reference = [](const Arrays& in, const Rounding&) {
    return Arrays{map(in[0], [](double x) { return -0.37 * x; })};
  };
  row.shapes = {{{3, 5, 7}}, {{}}, {{1}}, {{0, 2}}, {{2, 129}}};
  row.large = {{33, 3001}};
  return row;
}

OpRow softmax_row(int axis) {
  OpRow row;
  row.name = axis < 0 ? "softmax_last" : axis == 0 ? "softmax_first" : "softmax_middle";
  row.op = [axis](const Tensors& in) { return Tensors{softmax(in[0], axis)}; };
  row.reference = [axis](const Arrays& in, const Rounding&) {
    const Array& x = in[0];
    const Shape one = with_extent(x.shape, axis, 1);
    Array total(one), y(x.shape);
    for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
      total[broadcast_index(one, x.shape, i)] += y[i] = std::exp(x[i]);
    }
    for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
      y[i] /= total[broadcast_index(one, x.shape, i)];
    }
    return Arrays{y};
  };
  row.shapes = {{{3, 5, 7}}, {{1, 1, 1}}, {{2, 1, 37}}, {{2, 17, 1}}, {{2, 0, 3}}, {{1, 3, 130}}};
  row.large = {{9, 33, 401}};
  return row;
}

OpRow dropout_row() {
  constexpr double kRate = 0.3;
  constexpr std::uint64_t kSeed = 0x123456789abcdef;
  OpRow row;
  row.name = "dropout";
  row.op = [](const Tensors& in) { return Tensors{dropout(in[0], kRate, kSeed)}; };
  row.reference = [](const Arrays& in, const Rounding&) {
    Array y(in[0].shape);
    for (std::int64_t i = 0; i < y.shape.numel(); ++i) {
      y[i] = in[0][i] * dropout_factor(i, kRate, kSeed);
    }
    return Arrays{y};
  };
  row.shapes = {{{3, 5, 7}}, {{1}}, {{0, 2}}, {{2, 129}}, {{3, 16}}};
  row.large = {{33, 3001}};
  return row;
}

}  // namespace

double dropout_factor(std::int64_t i, double rate, std::uint64_t seed) {
  const auto words = philox({static_cast<std::uint32_t>(i / 4), 0, 0, 1}, seed);
  return words[static_cast<std::size_t>(i % 4)] >= rate * 0x1p32 ? 1 / (1 - rate) : 0;
}

std::vector<OpRow> elementwise_rows() {
  std::vector<OpRow> rows;
  for (const Activation f : kActivations) rows.push_back(activation_row(f));
  for (const Activation f : kActivations) rows.push_back(gated_row(f));
  rows.push_back(binary_row("add", add, [](double a, double b) { return a + b; }));
  rows.push_back(binary_row("subtract", subtract, [](double a, double b) { return a - b; }));
  rows.push_back(binary_row("mul", mul, [](double a, double b) { return a * b; }));
  rows.push_back(scale_row());
  for (const int axis : {-1, 0, 1}) rows.push_back(softmax_row(axis));
  rows.push_back(dropout_row());
  return rows;
}

}  // namespace qkv::test
