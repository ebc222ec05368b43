// Rows of the operator table: matrix products and attention.
#include <algorithm>
#include <cmath>

#include "qkv/attention.h"
#include "qkv/ops.h"
#include "support/op_table.h"

namespace qkv::test {
namespace {

Shape without_matrix(const Shape& shape) {
  return Shape(shape.extents().subspan(0, shape.extents().size() - 2));
}

Array product(const Array& a, const Array& b) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  const Shape batch_a = without_matrix(a.shape), batch_b = without_matrix(b.shape);
  const Shape batch = broadcast_of(batch_a, batch_b);
  std::vector<std::int64_t> extents(batch.extents().begin(), batch.extents().end());
  extents.push_back(m);
  extents.push_back(n);
  Array y{Shape(extents)};
  for (std::int64_t i = 0; i < y.shape.numel(); ++i) {
    const std::int64_t at = i / (m * n), row = i / n % m, column = i % n;
    const std::int64_t in_a = broadcast_index(batch_a, batch, at) * m + row;
    const std::int64_t in_b = broadcast_index(batch_b, batch, at) * k;
    for (std::int64_t p = 0; p < k; ++p) y[i] += a[in_a * k + p] * b[(in_b + p) * n + column];
  }
  return y;
}

Array turned(const Array& x) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  Array y(with_extent(with_extent(x.shape, -1, rows), -2, columns));
  for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
    const std::int64_t matrix = i / (rows * columns), row = i / columns % rows;
    y[(matrix * columns + i % columns) * rows + row] = x[i];
  }
  return y;
}

// 'n': as it is, 't': transposed.
OpRow matmul_row(char left, char right) {
  OpRow row;
  row.name = std::string("matmul_") + left + right;
  row.op = [=](const Tensors& in) {
    return Tensors{matmul(left == 't' ? transpose(in[0], -1, -2) : in[0],
                          right == 't' ? transpose(in[1], -1, -2) : in[1])};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    return Arrays{
        product(left == 't' ? turned(in[0]) : in[0], right == 't' ? turned(in[1]) : in[1])};
  };
  const auto matrices = [=](std::vector<std::int64_t> a, std::vector<std::int64_t> b) {
    if (left == 't') std::swap(a[a.size() - 1], a[a.size() - 2]);
    if (right == 't') std::swap(b[b.size() - 1], b[b.size() - 2]);
    return Shapes{Shape(a), Shape(b)};
  };
  row.shapes = {matrices({3, 5}, {5, 7}),
                matrices({1, 1}, {1, 1}),
                matrices({2, 3, 4, 9}, {2, 3, 9, 2}),
                matrices({2, 3, 4, 5}, {5, 6}),
                matrices({4, 5}, {3, 5, 2}),
                matrices({2, 1, 3, 4}, {3, 4, 17}),
                matrices({0, 5}, {5, 2}),
                matrices({2, 0}, {0, 3})};
  row.large = matrices({3, 130, 70}, {3, 70, 90});
  row.terms = 8;
  return row;
}

// Heads that lie beside the columns of b, as in the view of [B, S, H, D] that a layer's keys are;
// and a matrix for all of them, or one per head that sequences share.
OpRow matmul_heads_row() {
  OpRow row;
  row.name = "matmul_heads";
  row.op = [](const Tensors& in) { return Tensors{matmul(in[0], transpose(in[1], 1, 2))}; };
  row.reference = [](const Arrays& in, const Rounding&) {
    const std::int64_t batch = in[1].size(0), length = in[1].size(1), heads = in[1].size(2);
    const std::int64_t size = in[1].size(3);
    Array b{Shape{batch, heads, length, size}};
    for (std::int64_t i = 0; i < b.shape.numel(); ++i) {
      const std::int64_t d = i % size, s = i / size % length, h = i / size / length % heads;
      b[i] = in[1][((i / size / length / heads * length + s) * heads + h) * size + d];
    }
    return Arrays{product(in[0], b)};
  };
  row.shapes = {{{3, 5}, {2, 5, 4, 7}}, {{3, 5}, {1, 5, 4, 8}},    {{2, 5}, {3, 5, 1, 1}},
                {{2, 6}, {1, 6, 1, 3}}, {{4, 3, 5}, {2, 5, 4, 2}}, {{2, 1, 3, 5}, {1, 5, 4, 2}},
                {{0, 5}, {2, 5, 3, 2}}, {{3, 0}, {2, 0, 3, 2}}};
  row.large = {{40, 130}, {2, 130, 3, 48}};
  row.terms = 8;
  return row;
}

Array linear_reference(const Arrays& in, bool transposed) {
  const Array weight = transposed ? in[1] : turned(in[1]);
  const std::int64_t inputs = weight.size(0), outputs = weight.size(1);
  Array flat = in[0];
  flat.shape = Shape{in[0].shape.numel() / inputs, inputs};
  Array y = product(flat, weight);
  y.shape = with_extent(in[0].shape, -1, outputs);
  if (in.size() > 2) {
    for (std::int64_t i = 0; i < y.shape.numel(); ++i) y[i] += in[2][i % outputs];
  }
  return y;
}

OpRow linear_row(const std::string& name, const LinearOptions& options, bool has_bias) {
  OpRow row;
  row.name = name;
  row.op = [=](const Tensors& in) {
    return Tensors{linear(in[0], in[1], has_bias ? in[2] : Tensor(), options)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const Array y = linear_reference(in, options.transposed);
    return Arrays{map(y, [&](double x) {
      switch (options.activation) {
        case Activation::none: return x;
        case Activation::relu: return std::max(x, 0.0);
        case Activation::silu: return x / (1 + std::exp(-x));
        default: {  // gelu_tanh
          const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
          return 0.5 * x * (1 + std::tanh(u));
        }
      }
    })};
  };
  const auto sizes = [=](const Shape& x, std::int64_t outputs) {
    Shapes shapes{x, options.transposed ? Shape{x[-1], outputs} : Shape{outputs, x[-1]}};
    if (has_bias) shapes.push_back({outputs});
    return shapes;
  };
  row.shapes = {sizes({3, 5}, 4), sizes({2, 3, 9}, 17), sizes({1}, 1),      sizes({7}, 33),
                sizes({0, 5}, 3), sizes({3, 16}, 24),   sizes({2, 2}, 1031)};
  row.large = sizes({3, 60, 70}, 90);
  row.terms = 8;
  return row;
}

// Positions of one row of a table may be few, or so many that blocks of a device share them.
OpRow embedding_row(const std::string& name, std::int64_t many) {
  OpRow row;
  row.name = name;
  const auto count = [=](std::int64_t entries) { return entries == 1 ? 1 : many; };
  row.op = [=](const Tensors& in) {
    const std::int64_t n = count(in[0].size(0));
    const Tensor ids =
        Tensor::from(some_ids(n, in[0].size(0)), n == many ? Shape{n / 4, 4} : Shape{1});
    return Tensors{embedding(ids, in[0]), embedding(to(ids, DType::i32), in[0])};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const std::int64_t n = count(in[0].size(0)), width = in[0].size(1);
    const auto ids = some_ids(n, in[0].size(0));
    Array y(n == many ? Shape{n / 4, 4, width} : Shape{1, width});
    for (std::int64_t i = 0; i < y.shape.numel(); ++i) {
      y[i] = in[0][ids[static_cast<std::size_t>(i / width)] * width + i % width];
    }
    return Arrays{y, y};
  };
  row.shapes = {{{5, 3}}, {{1, 1}}, {{40, 33}}, {{7, 0}}, {{4, 16}}};
  row.terms = static_cast<double>(many) / 12;
  row.large = {{50, 3001}};
  return row;
}

// Causal, with a table of relative positions and sinks: q, k, v, table, sinks.
Array attention_reference(const Arrays& in, bool bias, bool sinks) {
  const Array &q = in[0], &k = in[1], &v = in[2];
  const std::int64_t heads = q.size(1), rows = q.size(2), keys = k.size(2), size = q.size(3);
  const std::int64_t group = heads / k.size(1), width = v.size(3);
  Array y(with_extent(q.shape, 3, width));
  for (std::int64_t bh = 0; bh < q.size(0) * heads; ++bh) {
    const std::int64_t h = bh % heads, kh = bh / heads * k.size(1) + h / group;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t last = i + keys - rows;
      double total = sinks ? std::exp(in[4][h]) : 0;
      double* out = &y.values[static_cast<std::size_t>((bh * rows + i) * width)];
      for (std::int64_t j = 0; j <= last && j < keys; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < size; ++d) {
          score += q[(bh * rows + i) * size + d] * k[(kh * keys + j) * size + d];
        }
        score /= std::sqrt(static_cast<double>(size));
        if (bias) score += in[3][relative_bucket(j - last, in[3].size(0), false, 16) * heads + h];
        const double e = std::exp(score);
        total += e;
        for (std::int64_t d = 0; d < width; ++d) out[d] += e * v[(kh * keys + j) * width + d];
      }
      for (std::int64_t d = 0; d < width && total > 0; ++d) out[d] /= total;
    }
  }
  return y;
}

OpRow attention_row(const std::string& name, bool extras) {
  OpRow row;
  row.name = name;
  row.op = [=](const Tensors& in) {
    AttentionOptions options{.mask = Mask::causal()};
    if (extras) {
      options.bias = Bias::relative(in[3], false, 16);
      options.sinks = in[4];
    }
    return Tensors{attention(in[0], in[1], in[2], options)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    return Arrays{attention_reference(in, extras, extras)};
  };
  const auto sizes = [=](const Shape& q, const Shape& k) {
    Shapes shapes{q, k, k};
    if (extras) {
      shapes.push_back({8, q[1]});
      shapes.push_back({q[1]});
    }
    return shapes;
  };
  row.shapes = {sizes({2, 4, 5, 8}, {2, 2, 7, 8}), sizes({1, 1, 1, 4}, {1, 1, 1, 4}),
                sizes({1, 2, 33, 16}, {1, 2, 33, 16})};
  row.large = sizes({2, 4, 150, 32}, {2, 2, 150, 32});
  row.f32_from = 3;
  row.roundings = 3;  // the weights are rounded for their product with v
  row.terms = 4;
  return row;
}

// q, k and v side by side in one tensor [B, S, 3 H D], as one projection gives them.
OpRow joint_attention_row() {
  constexpr std::int64_t kHeads = 2;
  OpRow row;
  row.name = "attention_joint";
  row.op = [](const Tensors& in) {
    const std::int64_t width = in[0].size(2) / 3;
    Tensors heads;
    for (const Tensor& part : split(in[0], 2, {width, width, width})) {
      heads.push_back(
          transpose(reshape(part, {part.size(0), part.size(1), kHeads, width / kHeads}), 1, 2));
    }
    return Tensors{attention(heads[0], heads[1], heads[2], {.mask = Mask::causal()})};
  };
  row.reference = [](const Arrays& in, const Rounding&) {
    const std::int64_t batch = in[0].size(0), length = in[0].size(1), size = in[0].size(2) / 6;
    Arrays parts;
    for (std::int64_t n = 0; n < 3; ++n) {
      Array x{Shape{batch, kHeads, length, size}};
      for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
        const std::int64_t d = i % size, s = i / size % length, h = i / size / length % kHeads;
        const std::int64_t b = i / size / length / kHeads;
        x[i] = in[0][((b * length + s) * 3 + n) * kHeads * size + h * size + d];
      }
      parts.push_back(x);
    }
    return Arrays{attention_reference(parts, false, false)};
  };
  row.shapes = {{{2, 5, 24}}, {{1, 1, 6}}, {{3, 9, 192}}, {{2, 20, 384}}};
  row.large = {{2, 70, 384}};
  row.roundings = 3;
  row.terms = 4;
  return row;
}

}  // namespace

std::vector<OpRow> product_rows() {
  return {
      matmul_row('n', 'n'),
      matmul_row('n', 't'),
      matmul_row('t', 'n'),
      matmul_row('t', 't'),
      matmul_heads_row(),
      linear_row("linear", {}, false),
      linear_row("linear_bias", {}, true),
      linear_row("linear_transposed", {.transposed = true}, true),
      linear_row("linear_relu", {.activation = Activation::relu}, true),
      linear_row("linear_gelu", {.activation = Activation::gelu_tanh}, true),
      linear_row("linear_silu", {.activation = Activation::silu}, true),
      embedding_row("embedding", 12),
      embedding_row("embedding_many", 900),
      attention_row("attention", false),
      attention_row("attention_table_sinks", true),
      joint_attention_row(),
  };
}

}  // namespace qkv::test
