// Random features of queries and keys, and the directions they are drawn from.
#include <cmath>
#include <limits>

#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/linear_attention.h"
#include "qkv/ops.h"
#include "qkv/random.h"

namespace qkv {
namespace {

constexpr double kReluFloor = 1e-3;  // keeps the weights of a row from being all 0

void check_features(const char* op, const Tensor& x, const Tensor& directions) {
  check_floating(op, "x", x);
  check_defined(op, "directions", directions);
  check(x.rank() == 4, "{}: x must be [B, H, S, D], got {}", op, x.shape());
  check(directions.dtype() == DType::f32 && directions.rank() == 2 && directions.size(0) > 0 &&
            directions.size(1) == x.size(3),
        "{}: directions must be f32 [features, {}], got {} {}", op, x.size(3), directions.dtype(),
        directions.shape());
  check(x.device() == directions.device(), "{}: x is on {}, the directions on {}", op, x.device(),
        directions.device());
}

double scale_of(const Tensor& x, const FeatureOptions& options) {
  if (options.scale) {
    check(*options.scale > 0, "features: the scale must be positive, got {}", *options.scale);
    return *options.scale;
  }
  return 1 / std::sqrt(static_cast<double>(x.size(3)));
}

Tensor relu_features(const Tensor& x, const Tensor& directions, const FeatureOptions& options) {
  const double count = static_cast<double>(directions.size(0));
  const Tensor turned = transpose(scale(directions, std::sqrt(scale_of(x, options) / count)), 0, 1);
  const Tensor floor = Tensor::full({1}, kReluFloor, {DType::f32, x.device()});
  return add(relu(matmul(x, turned)), floor);
}

// By row when `top` is undefined.
Tensor softmax_features(const Tensor& given, const Tensor& directions, double factor,
                        const Tensor& top, const Tensor& decay) {
  const Tensor x = contiguous(given);
  const std::int64_t groups = x.size(0) * x.size(1), length = x.size(2);
  const std::int64_t features = directions.size(0);
  Tensor y = Tensor::empty({x.size(0), x.size(1), length, features}, {x.dtype(), x.device()});
  Tensor scaled;
  {
    const TapePause pause;
    scaled = contiguous(scale(directions, std::sqrt(factor)));
    FeatureProblem problem;
    problem.x = reshape(x, {groups, length, x.size(3)});
    problem.directions = scaled;
    problem.y = reshape(y, {groups, length, features});
    problem.half_scale = static_cast<float>(factor / 2);
    if (top.defined()) {
      problem.top = reshape(top, {groups});
      problem.decay = reshape(decay, {groups});
    }
    if (y.numel() > 0) backend(x.device()).softmax_features(problem);
  }
  return Tape::record("softmax_features", {x}, y, [x, y, scaled, factor](const Tensor& dy) {
    Tensor dx = Tensor::empty(x.shape(), {x.dtype(), x.device()});
    FeatureBackward problem;
    const auto by_group = [&](const Tensor& t) {
      return reshape(t, {t.size(0) * t.size(1), t.size(2), t.size(3)});
    };
    problem.x = by_group(x);
    problem.directions = scaled;
    problem.y = by_group(y);
    problem.dy = by_group(contiguous(to(dy, x.dtype())));
    problem.scale = static_cast<float>(factor);
    problem.dx = by_group(dx);
    if (y.numel() > 0) backend(x.device()).softmax_features_backward(problem);
    return std::vector{dx};
  });
}

}  // namespace

Tensor orthogonal_directions(std::int64_t features, std::int64_t size, std::uint64_t seed) {
  check(features > 0 && size > 0, "directions: features {} and size {} must be positive", features,
        size);
  Generator random(seed);
  Tensor result = Tensor::empty({features, size});  // refuses what cannot be
  auto* to = result.data<float>();
  for (std::int64_t first = 0; first < features; first += size) {
    const std::vector<float> drawn = random.normal({size, size}).to_vector<float>();
    const std::vector<float> lengths = random.normal({size, size}).to_vector<float>();
    std::vector<double> rows(drawn.begin(), drawn.end());
    const std::int64_t count = std::min(size, features - first);
    for (std::int64_t i = 0; i < count; ++i) {
      double* row = rows.data() + i * size;
      const auto dot = [&](const double* other) {
        double sum = 0;
        for (std::int64_t d = 0; d < size; ++d) sum += row[d] * other[d];
        return sum;
      };
      for (int pass = 0; pass < 2; ++pass) {  // the second takes what rounding left of the first
        for (std::int64_t j = 0; j < i; ++j) {
          const double* other = rows.data() + j * size;
          const double share = dot(other);
          for (std::int64_t d = 0; d < size; ++d) row[d] -= share * other[d];
        }
      }
      const double norm = std::sqrt(dot(row));
      double length = 0;
      for (std::int64_t d = 0; d < size; ++d) {
        row[d] /= norm;
        length += std::pow(double{lengths[i * size + d]}, 2);
      }
      for (std::int64_t d = 0; d < size; ++d) {
        *to++ = static_cast<float>(row[d] * std::sqrt(length));
      }
    }
  }
  return result;
}

Tensor query_features(const Tensor& x, const Tensor& directions, const FeatureOptions& options) {
  check_features("query_features", x, directions);
  if (options.kind == FeatureKind::relu) return relu_features(x, directions, options);
  return softmax_features(x, directions, scale_of(x, options), {}, {});
}

KeyFeatures key_features(const Tensor& x, const Tensor& directions, const FeatureOptions& options,
                         const Tensor& top_before) {
  check_features("key_features", x, directions);
  const auto seen = [&](const Tensor& y) {
    return options.visible.defined() ? mul(y, options.visible) : y;
  };
  if (options.kind == FeatureKind::relu) {
    return {seen(relu_features(x, directions, options)), {}, {}};
  }
  const Shape heads{x.size(0), x.size(1)};
  check(!top_before.defined() || (top_before.dtype() == DType::f32 && top_before.shape() == heads),
        "key_features: top_before must be f32 {}, got {} {}", heads, top_before.dtype(),
        top_before.shape());
  const TensorOptions like{DType::f32, x.device()};
  KeyFeatures result;
  result.top = Tensor::full(heads, -std::numeric_limits<double>::infinity(), like);
  result.decay = Tensor::zeros(heads, like);
  if (top_before.defined()) backend(x.device()).copy(top_before, result.top);
  result.features =
      seen(softmax_features(x, directions, scale_of(x, options), result.top, result.decay));
  return result;
}

}  // namespace qkv
