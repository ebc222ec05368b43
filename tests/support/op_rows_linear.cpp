// Rows of the operator table: attention by features.
#include <cmath>

#include "qkv/linear_attention.h"
#include "qkv/ops.h"
#include "support/op_table.h"

namespace qkv::test {
namespace {

OpRow causal_product_row(const std::string& name, bool reverse) {
  OpRow row;
  row.name = name;
  row.op = [=](const Tensors& in) { return Tensors{causal_product(in[0], in[1], in[2], reverse)}; };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const std::int64_t length = in[0].size(2), size = in[0].size(3), width = in[2].size(3);
    Array y(in[2].shape);
    for (std::int64_t g = 0; g < in[0].size(0) * in[0].size(1); ++g) {
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t j = reverse ? i : 0; j < (reverse ? length : i + 1); ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < size; ++d) {
            score += in[0][(g * length + i) * size + d] * in[1][(g * length + j) * size + d];
          }
          for (std::int64_t d = 0; d < width; ++d) {
            y[(g * length + i) * width + d] += score * in[2][(g * length + j) * width + d];
          }
        }
      }
    }
    return Arrays{y};
  };
  const auto sizes = [](std::int64_t heads, std::int64_t length, std::int64_t p, std::int64_t r) {
    return Shapes{{2, heads, length, p}, {2, heads, length, p}, {2, heads, length, r}};
  };
  row.shapes = {sizes(2, 5, 3, 4),  sizes(1, 1, 1, 1),  sizes(1, 0, 2, 3),
                sizes(1, 64, 4, 3), sizes(2, 65, 3, 5), sizes(1, 130, 2, 2)};
  row.large = sizes(3, 200, 40, 33);
  row.terms = 64;
  row.roundings = 8;  // scores are rounded for their product with c, and sums are of either sign
  return row;
}

// What a Performer computes, from the definition: features without any shift.
std::vector<double> features_of(const Array& x, const Array& directions, std::int64_t row,
                                FeatureKind kind) {
  const std::int64_t size = x.size(3), count = directions.size(0);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  std::vector<double> features;
  double squares = 0;
  for (std::int64_t d = 0; d < size; ++d) squares += x[row * size + d] * x[row * size + d];
  for (std::int64_t f = 0; f < count; ++f) {
    double dot = 0;
    for (std::int64_t d = 0; d < size; ++d) dot += x[row * size + d] * directions[f * size + d];
    dot *= std::sqrt(scale);
    const double share = 1 / std::sqrt(static_cast<double>(count));
    features.push_back(kind == FeatureKind::softmax ? std::exp(dot - scale * squares / 2) * share
                                                    : std::max(dot, 0.0) * share + 1e-3);
  }
  return features;
}

Array performer_reference(const Arrays& in, const Array& directions, FeatureKind kind,
                          bool causal) {
  const Array &q = in[0], &k = in[1], &v = in[2];
  const std::int64_t heads = q.size(1), group = heads / k.size(1), width = v.size(3);
  const std::int64_t rows = q.size(2), keys = k.size(2);
  Array y(with_extent(q.shape, 3, width));
  for (std::int64_t bh = 0; bh < q.size(0) * heads; ++bh) {
    const std::int64_t kh = bh / heads * k.size(1) + bh % heads / group;
    std::vector<std::vector<double>> key_features;
    for (std::int64_t j = 0; j < keys; ++j) {
      key_features.push_back(features_of(k, directions, kh * keys + j, kind));
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::vector<double> query = features_of(q, directions, bh * rows + i, kind);
      double total = 0;
      double* out = &y.values[static_cast<std::size_t>((bh * rows + i) * width)];
      for (std::int64_t j = 0; j < (causal ? i + 1 : keys); ++j) {
        double weight = 0;
        for (std::size_t f = 0; f < query.size(); ++f) {
          weight += query[f] * key_features[static_cast<std::size_t>(j)][f];
        }
        total += weight;
        for (std::int64_t d = 0; d < width; ++d) out[d] += weight * v[(kh * keys + j) * width + d];
      }
      for (std::int64_t d = 0; d < width && total > 0; ++d) out[d] /= total;
    }
  }
  return y;
}

OpRow performer_row(const std::string& name, FeatureKind kind, bool causal) {
  OpRow row;
  row.name = name;
  const auto directions = [](std::int64_t size) {
    return orthogonal_directions(2 * size + 3, size, 9);
  };
  row.op = [=](const Tensors& in) {
    const Tensor drawn = to(directions(in[0].size(3)), in[0].device());
    return Tensors{performer_attention(in[0], in[1], in[2], drawn, {.kind = kind}, causal)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const Tensor drawn = directions(in[0].size(3));
    Array array(drawn.shape());
    const std::vector<float> values = drawn.to_vector<float>();
    array.values.assign(values.begin(), values.end());
    return Arrays{performer_reference(in, array, kind, causal)};
  };
  const auto sizes = [](const Shape& q, const Shape& k) { return Shapes{q, k, k}; };
  row.shapes = {sizes({2, 4, 5, 8}, {2, 2, 5, 8}), sizes({1, 1, 1, 4}, {1, 1, 1, 4}),
                sizes({1, 2, 70, 6}, {1, 2, 70, 6})};
  if (!causal) row.shapes.push_back(sizes({1, 2, 3, 5}, {1, 1, 9, 5}));
  row.large = sizes({2, 4, 150, 32}, {2, 2, 150, 32});
  row.roundings = 6;  // features, and sums of their products with v
  row.terms = 16;
  return row;
}

// Sizes that models have, for which a device may have kernels of their own.
OpRow performer_tiles_row(const std::string& name, bool causal) {
  OpRow row = performer_row(name, FeatureKind::softmax, causal);
  const auto directions = [](std::int64_t size) { return orthogonal_directions(64, size, 9); };
  row.op = [=](const Tensors& in) {
    const Tensor drawn = to(directions(in[0].size(3)), in[0].device());
    return Tensors{performer_attention(in[0], in[1], in[2], drawn, {}, causal)};
  };
  row.reference = [=](const Arrays& in, const Rounding&) {
    const Tensor drawn = directions(in[0].size(3));
    Array array(drawn.shape());
    const std::vector<float> values = drawn.to_vector<float>();
    array.values.assign(values.begin(), values.end());
    return Arrays{performer_reference(in, array, FeatureKind::softmax, causal)};
  };
  row.shapes.clear();
  for (const Shape& shape : {Shape{2, 1, 21, 32}, Shape{1, 2, 40, 64}, Shape{1, 1, 18, 128}}) {
    row.shapes.push_back({shape, shape, shape});
  }
  return row;
}

}  // namespace

std::vector<OpRow> linear_attention_rows() {
  return {
      causal_product_row("causal_product", false),
      causal_product_row("causal_product_reverse", true),
      performer_row("performer", FeatureKind::softmax, false),
      performer_row("performer_causal", FeatureKind::softmax, true),
      performer_tiles_row("performer_tiles", false),
      performer_tiles_row("performer_tiles_causal", true),
      performer_row("performer_relu", FeatureKind::relu, false),
      performer_row("performer_relu_causal", FeatureKind::relu, true),
  };
}

}  // namespace qkv::test
