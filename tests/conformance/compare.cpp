#include "conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "qkv/ops.h"

namespace conformance {
namespace {

// |got - expected| <= relative * |expected| + absolute * max(1, largest |expected|): the sum of
// weighted values can cancel, so its error follows the size of the values, not of their sum. The
// cases themselves are exact to 1.5e-7 in f32 and correctly rounded in f16 (half a step of 2^-10).
struct Tolerance {
  double relative, absolute;
};

Tolerance tolerance(qkv::DType dtype) {
  switch (dtype) {
    case qkv::DType::f16: return {1e-3, 1e-3};
    case qkv::DType::bf16: return {8e-3, 8e-3};
    case qkv::DType::f32: return {1e-5, 1e-6};
    default: return {0, 0};
  }
}

// NaN equals NaN and an infinity equals itself: the cases hold -inf on purpose.
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

template <class... Args>
std::string text(const char* format, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, format, args...);
  return line;
}

std::vector<double> values_of(const qkv::Tensor& x) {
  if (x.dtype() == qkv::DType::i64) {
    const auto v = x.to_vector<std::int64_t>();
    return {v.begin(), v.end()};
  }
  const auto v = qkv::to(x, qkv::DType::f32).to_vector<float>();
  return {v.begin(), v.end()};
}

}  // namespace

std::string difference(const qkv::Tensor& got, const qkv::Tensor& expected) {
  if (got.dtype() != expected.dtype() || !(got.shape() == expected.shape())) {
    return std::string("is ") + to_string(got.dtype()) + " " + to_string(got.shape()) +
           ", expected " + to_string(expected.dtype()) + " " + to_string(expected.shape());
  }
  const std::vector<double> a = values_of(got), b = values_of(expected);
  double largest = 1;
  for (const double value : b) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const Tolerance allowed = tolerance(expected.dtype());
  double worst = -1;
  std::size_t wrong = 0, at = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (same(a[i], b[i])) continue;
    const double error = std::abs(a[i] - b[i]);
    // Written so that a NaN, from one side or from inf - inf, is a failure.
    if (error <= allowed.relative * std::abs(b[i]) + allowed.absolute * largest &&
        std::isfinite(b[i])) {
      continue;
    }
    ++wrong;
    const double rank = std::isnan(error) ? HUGE_VAL : error;
    if (rank > worst) {
      worst = rank;
      at = i;
    }
  }
  if (wrong == 0) return {};
  return text("max error %.3g (got %.9g, expected %.9g at element %zu; %zu of %zu differ)", worst,
              a[at], b[at], at, wrong, a.size());
}

}  // namespace conformance
