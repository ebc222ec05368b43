#include "support/values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dispatch.h"
#include "qkv/ops.h"

namespace qkv::test {

std::vector<double> values_of(const Tensor& x) {
  if (!x.defined()) return {};
  return dispatch_all(x.dtype(), [&]<class T>() {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(x.numel()));
    for (const auto& element : x.to_vector<T>()) {
      if constexpr (std::is_class_v<T>) {
        values.push_back(static_cast<float>(element));
      } else {
        values.push_back(static_cast<double>(element));
      }
    }
    return values;
  });
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  EXPECT_EQ(x.size(), y.size());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::isnan(x[i] - y[i]) ? INFINITY : std::max(worst, std::abs(x[i] - y[i]));
  }
  return worst;
}

double relative_distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(x[i] - y[i], 2);
    length += y[i] * y[i];
  }
  return std::sqrt(difference / length);
}

std::vector<std::uint8_t> bytes_of(const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor rows = to(contiguous(x), kCpu);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(x.numel()) * size_of(x.dtype()));
  if (!bytes.empty()) std::memcpy(bytes.data(), rows.raw(), bytes.size());
  return bytes;
}

Tensor on_device(const Tensor& x, Device device) {
  if (!x.defined() || x.numel() == 0) return x.defined() ? to(x, device) : x;
  std::int64_t last = 0;
  std::vector<std::int64_t> strides;
  for (int axis = 0; axis < x.rank(); ++axis) {
    strides.push_back(x.stride(axis));
    last += (x.size(axis) - 1) * x.stride(axis);
  }
  const Tensor run = to(Tensor::wrap(x.raw(), {last + 1}, x.dtype()), device);
  return run.view(x.shape(), strides, 0);
}

}  // namespace qkv::test
