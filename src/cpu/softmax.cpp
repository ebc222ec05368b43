#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dispatch.h"
#include "core/threads.h"
#include "cpu/kernels.h"

namespace qkv::cpu {
namespace {

constexpr std::int64_t kElementsPerTask = 8192;

template <class T>
void softmax_row(const T* x, T* y, std::int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float max = kNone;
  bool has_nan = false;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(x[i]);
    max = value > max ? value : max;  // false for NaN, hence the flag
    has_nan |= std::isnan(value);
  }
  if (max == kNone && !has_nan) {  // sees nothing: zeros, not 0 / 0
    for (std::int64_t i = 0; i < count; ++i) y[i] = T(0.0f);
    return;
  }
  // Summed in double: a long row loses nothing, and one addition is cheap beside an exp.
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<float>(x[i]) - max);
  const auto scale = static_cast<float>(1 / sum);
  // exp again rather than a buffer: T may be 16 bits wide, and e must not be rounded twice.
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = T(std::exp(static_cast<float>(x[i]) - max) * scale);
  }
}

}  // namespace

void softmax(const Tensor& x, Tensor& y) {
  const std::int64_t count = x.size(-1);
  if (x.numel() == 0) return;
  const std::int64_t rows = x.numel() / count;
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / count);
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task) {
      const std::int64_t end = std::min(rows, (task + 1) * rows_per_task);
      for (std::int64_t row = task * rows_per_task; row < end; ++row) {
        softmax_row(from + row * count, to + row * count, count);
      }
    });
  });
}

}  // namespace qkv::cpu
