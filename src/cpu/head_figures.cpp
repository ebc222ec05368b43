// Means, maxima and norms of heads, one source for every SIMD target. The order of every sum
// depends on the shapes alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/head_figures.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

#ifndef QKV_CPU_HEAD_FIGURES_ONCE
#define QKV_CPU_HEAD_FIGURES_ONCE
namespace qkv::cpu {
namespace {

// Rows [first, end) of one head, counted over the batch.
struct HeadPiece {
  const HeadFigures* item = nullptr;
  std::int64_t head = 0, first = 0, end = 0;
};

// NaN stays.
double joined(HeadFigure figure, double a, double b) {
  if (figure != HeadFigure::largest) return a + b;
  return a > b || std::isnan(a) ? a : b;
}
double of_nothing(HeadFigure figure) {
  return figure == HeadFigure::largest ? -std::numeric_limits<double>::infinity() : 0;
}
double finished(const HeadFigures& item, double total) {
  if (item.figure == HeadFigure::norm) return std::sqrt(total);
  const std::int64_t count = item.x.numel() / std::max<std::int64_t>(item.x.size(1), 1);
  if (item.figure == HeadFigure::largest || count == 0) return total;
  return total / static_cast<double>(count);
}

}  // namespace
}  // namespace qkv::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// Calls body(row) with where each row of the piece begins.
template <class T, class Body>
HWY_INLINE void for_each_row(const HeadPiece& piece, Body&& body) {
  const Tensor& x = piece.item->x;
  const T* base = x.data<T>() + piece.head * x.stride(1);
  const std::int64_t length = x.size(2);
  std::int64_t batch = piece.first / length, at = piece.first % length;
  for (std::int64_t row = piece.first; row < piece.end; ++row) {
    body(base + batch * x.stride(0) + at * x.stride(2));
    if (++at == length) {
      at = 0;
      ++batch;
    }
  }
}

template <class T>
double squares_of(const HeadPiece& piece) {
  const std::int64_t width = piece.item->x.size(3);
  Sum sum;
  for_each_row<T>(piece, [&](const T* row) QKV_LANES_BODY {
    for_lanes(width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
      const VecF32 x = load_lanes(row + i, n);
      sum.add(hn::Mul(x, x));
    });
  });
  return sum.total();
}

template <class T>
double figure_of(const HeadPiece& piece) {
  const Tensor& x = piece.item->x;
  const HeadFigure figure = piece.item->figure;
  if (figure == HeadFigure::norm && x.stride(3) == 1) return squares_of<T>(piece);
  double total = of_nothing(figure);
  for_each_row<T>(piece, [&](const T* row) {
    for (std::int64_t i = 0; i < x.size(3); ++i) {
      const double value = static_cast<float>(row[i * x.stride(3)]);
      total = joined(figure, total, figure == HeadFigure::norm ? value * value : value);
    }
  });
  return total;
}

void head_figures_kernel(std::span<const HeadFigures> items, Tensor& y) {
  std::vector<HeadPiece> pieces;
  std::vector<std::int64_t> firsts;  // piece of every result, and how many there are
  std::int64_t elements = 0;
  for (const HeadFigures& item : items) {
    const Tensor& x = item.x;
    const std::int64_t rows = x.numel() == 0 ? 0 : x.size(0) * x.size(2);
    const std::int64_t step =
        std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, x.size(3)));
    elements += x.numel();
    for (std::int64_t head = 0; head < x.size(1); ++head) {
      firsts.push_back(static_cast<std::int64_t>(pieces.size()));
      for (std::int64_t row = 0; row < rows; row += step) {
        pieces.push_back({&item, head, row, std::min(rows, row + step)});
      }
    }
  }
  const auto count = static_cast<std::int64_t>(pieces.size());
  firsts.push_back(count);
  std::vector<double> parts(pieces.size());
  for_each_rows(count, elements / std::max<std::int64_t>(1, count),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) {
                    dispatch_float(pieces[i].item->x.dtype(),
                                   [&]<class T>() { parts[i] = figure_of<T>(pieces[i]); });
                  }
                });
  std::int64_t result = 0;
  for (const HeadFigures& item : items) {
    for (std::int64_t head = 0; head < item.x.size(1); ++head, ++result) {
      double total = of_nothing(item.figure);
      for (std::int64_t i = firsts[result]; i < firsts[result + 1]; ++i) {
        total = joined(item.figure, total, parts[i]);
      }
      y.data<float>()[result] = static_cast<float>(finished(item, total));
    }
  }
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(head_figures_kernel);

void head_figures(std::span<const HeadFigures> items, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(head_figures_kernel)(items, y);
}

}  // namespace qkv::cpu
#endif
