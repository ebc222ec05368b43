// Sums over axes, one source for every SIMD target. The order of every sum depends on the shapes
// alone.
#include <algorithm>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/sum_axes.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sum.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

void put(Tensor& y, std::int64_t index, double value) {
  if (y.dtype() == DType::f32) {
    y.data<float>()[index] = static_cast<float>(value);
  } else {
    dispatch_float(y.dtype(),
                   [&]<class T>() { y.data<T>()[index] = T(static_cast<float>(value)); });
  }
}

template <class T>
double sum_run(const T* x, std::int64_t count, std::int64_t step) {
  if (step == 1) return sum_of(x, count);
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += static_cast<float>(x[i * step]);
  return total;
}

// The last axis is summed over: a number per run, runs of one result added up in order.
template <class T>
void sum_inner(const SumAxes& axes, const T* x, Tensor& y) {
  const int last = axes.rank - 1;
  const std::int64_t run = axes.extents[last], step = axes.strides[last];
  const std::int64_t results = y.numel(), runs = axes.count(true, last);
  // Long runs are cut, and all parts of all results handed out alike.
  const std::int64_t parts = (run + kTaskElements - 1) / kTaskElements;
  const std::int64_t per_result = runs * parts;
  Scratch<double> sums(results * per_result);
  for_each_rows(results * per_result, run / parts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i % parts, from = part * kTaskElements;
      const std::int64_t at = axes.offset(i / per_result, false, last) +
                              axes.offset(i % per_result / parts, true, last) + from * step;
      sums[i] = sum_run(x + at, std::min(kTaskElements, run - from), step);
    }
  });
  for (std::int64_t i = 0; i < results; ++i) {
    double total = 0;
    for (std::int64_t k = 0; k < per_result; ++k) total += sums[i * per_result + k];
    put(y, i, total);
  }
}

// sums[0 .. columns) += rows of x, sixteen in f32 before they join the sums in double.
template <class T>
void add_rows(const SumAxes& axes, const T* x, std::int64_t first, std::int64_t end,
              std::int64_t columns, double* sums) {
  constexpr std::int64_t kTogether = 16;
  const int last = axes.rank - 1;
  for (std::int64_t r = first; r < end; r += kTogether) {
    const std::int64_t rows = std::min(kTogether, end - r);
    const T* row[kTogether];
    for (std::int64_t k = 0; k < rows; ++k) row[k] = x + axes.offset(r + k, true, last);
    for_lanes(columns, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
      VecF32 total = load_lanes(row[0] + i, n);
      for (std::int64_t k = 1; k < rows; ++k) total = hn::Add(total, load_lanes(row[k] + i, n));
      HWY_ALIGN float lanes[hn::MaxLanes(F32())];
      hn::Store(total, F32(), lanes);
      for (std::int64_t k = 0; k < n; ++k) sums[i + k] += lanes[k];
    });
  }
}

// The last axis is kept and contiguous: rows are read from front to back and added up.
template <class T>
void sum_outer(const SumAxes& axes, const T* x, Tensor& y) {
  constexpr std::int64_t kBlock = 4096;  // columns, so that their sums stay in a cache
  const int last = axes.rank - 1;
  const std::int64_t columns = axes.extents[last], rows = axes.count(true, last);
  const std::int64_t width = std::min(columns, kBlock), blocks = (columns + width - 1) / width;
  const std::int64_t groups = y.numel() / columns * blocks;
  // Enough chunks of rows for many threads; how many does not depend on the threads.
  const std::int64_t chunk =
      std::max(round_up((rows + 31) / 32, 16), round_up(kTaskElements / width, 16));
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  Scratch<double> sums(groups * chunks * width);
  for_each_rows(groups * chunks, chunk * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % chunks * chunk, group = i / chunks;
      const std::int64_t column = group % blocks * width;
      double* total = sums.get() + i * width;
      std::fill_n(total, width, 0.0);
      add_rows(axes, x + axes.offset(group / blocks, false, last) + column, first,
               std::min(rows, first + chunk), std::min(width, columns - column), total);
    }
  });
  for_each_rows(groups, chunks * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      double* total = sums.get() + g * chunks * width;
      for (std::int64_t k = 1; k < chunks; ++k) {
        for (std::int64_t i = 0; i < width; ++i) total[i] += total[k * width + i];
      }
      const std::int64_t column = g % blocks * width, at = g / blocks * columns + column;
      for (std::int64_t i = 0; i < std::min(width, columns - column); ++i) put(y, at + i, total[i]);
    }
  });
}

void sum_kernel(const Tensor& x, Tensor& y) {
  if (y.numel() == 0) return;
  SumAxes axes;
  for (int axis = 0; axis < x.rank(); ++axis) {
    axes.take(x.size(axis), x.stride(axis), y.size(axis) == 1);
  }
  const int last = axes.rank - 1;
  dispatch_float(x.dtype(), [&]<class T>() {
    if (x.numel() == 0) {
      for (std::int64_t i = 0; i < y.numel(); ++i) put(y, i, 0);
    } else if (axes.rank > 0 && !axes.summed[last] && axes.strides[last] == 1) {
      sum_outer(axes, x.data<T>(), y);
    } else {
      // A kept last axis with gaps: every result by itself, over a last axis of one.
      if (axes.rank == 0 || !axes.summed[last]) {
        axes.extents[axes.rank] = axes.strides[axes.rank] = 1;
        axes.summed[axes.rank++] = true;
      }
      sum_inner(axes, x.data<T>(), y);
    }
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(sum_kernel);

void sum(const Tensor& x, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(sum_kernel)(x, y);
}

}  // namespace qkv::cpu
#endif
