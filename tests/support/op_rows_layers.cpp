// Rows of the operator table: norms, rotary, cross entropy.
#include <cmath>

#include "qkv/ops.h"
#include "support/op_table.h"

namespace qkv::test {
namespace {

struct NormKind {
  std::string name;
  bool centered = true, weight = true, bias = true, residual = false;
  double offset = 0, dropout = 0;
};
constexpr std::uint64_t kSeed = 0xfedcba987654321;
constexpr double kEps = 1e-5;

// x, then the residual, the weight and the bias, as far as there are any.
struct NormInputs {
  std::size_t residual, weight, bias;
  explicit NormInputs(const NormKind& kind)
      : residual(1), weight(kind.residual ? 2 : 1), bias(weight + (kind.weight ? 1 : 0)) {}
};

Tensors run_norm(const NormKind& kind, const Tensors& in) {
  const NormInputs at(kind);
  const Tensor weight = kind.weight ? in[at.weight] : Tensor();
  const Tensor bias = kind.bias ? in[at.bias] : Tensor();
  if (!kind.residual) {
    return {kind.centered ? layer_norm(in[0], weight, bias, kEps)
                          : rms_norm(in[0], weight, kEps, kind.offset)};
  }
  const Dropout dropout{kind.dropout, kSeed};
  const NormedSum y =
      kind.centered ? add_layer_norm(in[0], in[at.residual], weight, bias, kEps, dropout)
                    : add_rms_norm(in[0], in[at.residual], weight, kEps, kind.offset, dropout);
  return {y.sum, y.normed};
}

Arrays norm_reference(const NormKind& kind, const Arrays& in, const Rounding& round) {
  const NormInputs at(kind);
  Array x = in[0];
  if (kind.residual) {
    for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
      if (kind.dropout > 0) x[i] = round(x[i] * dropout_factor(i, kind.dropout, kSeed));
      x[i] = round(x[i] + in[at.residual][i]);
    }
  }
  const std::int64_t width = x.size(-1);
  Array y(x.shape);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    double mean = 0, squares = 0;
    for (std::int64_t i = 0; i < width; ++i) mean += x[r * width + i];
    mean = kind.centered ? mean / static_cast<double>(width) : 0;
    for (std::int64_t i = 0; i < width; ++i) squares += std::pow(x[r * width + i] - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(width) + kEps);
    for (std::int64_t i = 0; i < width; ++i) {
      const double weight = kind.weight ? in[at.weight][i] + kind.offset : 1;
      y[r * width + i] =
          (x[r * width + i] - mean) / deviation * weight + (kind.bias ? in[at.bias][i] : 0);
    }
  }
  return kind.residual ? Arrays{x, y} : Arrays{y};
}

OpRow norm_row(const NormKind& kind) {
  OpRow row;
  row.name = kind.name;
  row.op = [kind](const Tensors& in) { return run_norm(kind, in); };
  row.reference = [kind](const Arrays& in, const Rounding& round) {
    return norm_reference(kind, in, round);
  };
  const auto sizes = [&](const Shape& x) {
    Shapes shapes{x};
    if (kind.residual) shapes.push_back(x);
    if (kind.weight) shapes.push_back({x[-1]});
    if (kind.bias) shapes.push_back({x[-1]});
    return shapes;
  };
  row.shapes = {sizes({3, 5}),  sizes({2, 3, 37}), sizes({0, 4}),  sizes({1, 130}),
                sizes({17, 3}), sizes({5, 64}),    sizes({3, 520})};
  row.large = sizes({300, 264});
  row.terms = 4;
  return row;
}

// Angles of position s and pair i; one table per sequence when asked.
double angle(std::int64_t b, std::int64_t s, std::int64_t i) {
  return static_cast<double>(s + 3 * b) / std::pow(10.0, 0.3 * static_cast<double>(i));
}

OpRow rotary_row(const std::string& name, bool interleaved, bool partial, bool per_batch) {
  OpRow row;
  row.name = name;
  const auto half_of = [=](std::int64_t size) { return partial ? size / 4 : size / 2; };
  row.op = [=](const Tensors& in) {
    const std::int64_t batch = per_batch ? in[0].size(0) : 1, length = in[0].size(2);
    const std::int64_t half = half_of(in[0].size(3));
    std::vector<float> cos, sin;
    for (std::int64_t n = 0; n < batch * length * half; ++n) {
      const double a = angle(n / half / length, n / half % length, n % half);
      cos.push_back(static_cast<float>(std::cos(a)));
      sin.push_back(static_cast<float>(std::sin(a)));
    }
    const Shape shape = per_batch ? Shape{batch, length, half} : Shape{length, half};
    return Tensors{rotary(in[0], Tensor::from(cos, shape), Tensor::from(sin, shape), interleaved)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const std::int64_t heads = in[0].size(1), length = in[0].size(2), size = in[0].size(3);
    const std::int64_t half = half_of(size);
    Array y = in[0];
    for (std::int64_t r = 0; r < in[0].rows(); ++r) {
      const std::int64_t b = per_batch ? r / length / heads : 0, s = r % length;
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t u = r * size + (interleaved ? 2 * i : i);
        const std::int64_t v = r * size + (interleaved ? 2 * i + 1 : i + half);
        const double c = static_cast<float>(std::cos(angle(b, s, i)));
        const double d = static_cast<float>(std::sin(angle(b, s, i)));
        y[u] = in[0][u] * c - in[0][v] * d;
        y[v] = in[0][v] * c + in[0][u] * d;
      }
    }
    return Arrays{y};
  };
  row.shapes = {{{2, 3, 5, 8}}, {{1, 1, 1, 4}}, {{2, 1, 3, 68}}, {{1, 2, 0, 8}}, {{2, 2, 3, 13}}};
  row.large = {{2, 4, 150, 68}};
  row.terms = 2;
  return row;
}

OpRow cross_entropy_row(const std::string& name, const CrossEntropyOptions& options, bool ignore) {
  OpRow row;
  row.name = name;
  const auto targets = [=](std::int64_t rows, std::int64_t classes) {
    auto ids = some_ids(rows, classes);
    if (ignore && rows > 1) ids[1] = options.ignore_index;
    if (ignore && rows > 4) ids[4] = options.ignore_index;
    return ids;
  };
  row.op = [=](const Tensors& in) {
    const Shape& shape = in[0].shape();
    const auto ids = targets(shape.numel() / shape[-1], shape[-1]);
    return Tensors{cross_entropy(
        in[0], Tensor::from(ids, Shape(shape.extents().first(shape.extents().size() - 1))),
        options)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const std::int64_t rows = in[0].rows(), classes = in[0].size(-1);
    const auto ids = targets(rows, classes);
    double sum = 0, count = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t target = ids[static_cast<std::size_t>(r)];
      if (target == options.ignore_index) continue;
      double total = 0, mean = 0;
      for (std::int64_t i = 0; i < classes; ++i) {
        total += std::exp(in[0][r * classes + i]);
        mean += in[0][r * classes + i] / static_cast<double>(classes);
      }
      const double lse = std::log(total), smooth = options.label_smoothing;
      sum += (1 - smooth) * (lse - in[0][r * classes + target]) + smooth * (lse - mean) +
             options.z_loss * lse * lse;
      count += 1;
    }
    Array y{Shape{}};
    y[0] = sum / count;
    return Arrays{y};
  };
  row.shapes = {{{3, 5}}, {{2, 3, 37}}, {{6, 130}}, {{4, 24}}};
  // One row whose class is the ignored one would leave nothing to average.
  if (options.ignore_index != 0) row.shapes.insert(row.shapes.end(), {{{1, 1}}, {{7}}});
  row.large = {{60, 1501}};
  row.terms = 4;
  return row;
}

}  // namespace

std::vector<OpRow> layer_rows() {
  return {
      norm_row({.name = "layer_norm"}),
      norm_row({.name = "layer_norm_plain", .weight = false, .bias = false}),
      norm_row({.name = "layer_norm_no_bias", .bias = false}),
      norm_row({.name = "add_layer_norm", .residual = true}),
      norm_row({.name = "rms_norm", .centered = false, .bias = false}),
      norm_row({.name = "rms_norm_plain", .centered = false, .weight = false, .bias = false}),
      norm_row({.name = "rms_norm_offset", .centered = false, .bias = false, .offset = 1}),
      norm_row({.name = "add_rms_norm",
                .centered = false,
                .bias = false,
                .residual = true,
                .offset = 1}),
      norm_row({.name = "add_layer_norm_dropout", .residual = true, .dropout = 0.3}),
      norm_row({.name = "add_rms_norm_dropout",
                .centered = false,
                .bias = false,
                .residual = true,
                .dropout = 0.1}),
      rotary_row("rotary", false, false, false),
      rotary_row("rotary_interleaved", true, false, false),
      rotary_row("rotary_partial", false, true, false),
      rotary_row("rotary_partial_interleaved", true, true, true),
      rotary_row("rotary_per_batch", false, false, true),
      cross_entropy_row("cross_entropy", {}, false),
      cross_entropy_row("cross_entropy_ignore", {.ignore_index = -100}, true),
      cross_entropy_row("cross_entropy_ignore_class", {.ignore_index = 0}, false),
      cross_entropy_row("cross_entropy_smooth", {.label_smoothing = 0.1}, true),
      cross_entropy_row("cross_entropy_z_loss", {.label_smoothing = 0.1, .z_loss = 0.02}, true),
  };
}

}  // namespace qkv::test
