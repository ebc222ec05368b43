// Positive random features of the softmax kernel and their gradient, one source for every SIMD
// target. Rows go through in blocks, whose projections stay in a cache.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/dispatch.h"
#include "core/threads.h"
#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/features.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/log_sum-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kBlock = 192;  // rows

// Calls body(begin, end) for blocks of rows.
template <class Body>
void for_blocks(std::int64_t rows, Body&& body) {
  parallel_for((rows + kBlock - 1) / kBlock, [&](std::int64_t task) {
    body(task * kBlock, std::min(rows, (task + 1) * kBlock));
  });
}

// y f32 [rows, N] = x [rows, K] times a packed weight, of contiguous rows.
template <class T>
void multiply_block(const T* x, std::int64_t rows, const Packed& weight, float* y) {
  const auto& packed = static_cast<const CpuPacked&>(weight);
  multiply({.engine = packed.engine,
            .a = {.data = reinterpret_cast<const std::byte*>(x),
                  .dtype = dtype_of<T>,
                  .row = packed.inputs,
                  .step = 1,
                  .group = rows,
                  .group_stride = 0},
            .m = rows,
            .n = packed.outputs,
            .k = packed.inputs,
            .round = false,
            .packed = &packed,
            .y = {reinterpret_cast<std::byte*>(y), DType::f32, packed.outputs, 1}});
}

template <class T>
double squares_of(const T* x, std::int64_t count) {
  Sum sum;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 v = load_lanes(x + i, n);
    sum.add(hn::Mul(v, v));
  });
  return sum.total();
}

// y = exp(projected - top) * share
template <class T>
void exp_row(const float* projected, float top, float share, T* y, std::int64_t count) {
  const VecF32 high = hn::Set(F32(), top), factor = hn::Set(F32(), share);
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 e = exp_below(load_lanes(projected + i, n), high);
    store_lanes(hn::Mul(e, factor), y + i, n);
  });
}

struct FeatureRows {
  std::int64_t rows, size, features;
  float share;
  std::shared_ptr<const Packed> directions;
};

// Exponents relative to the largest of their row.
template <class T>
void features_by_row(const FeatureProblem& p, const FeatureRows& f) {
  const T* x = p.x.data<T>();
  T* y = p.y.data<T>();
  for_blocks(f.rows, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> projected(kBlock * f.features);
    multiply_block(x + begin * f.size, end - begin, *f.directions, projected.get());
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = projected.get() + (r - begin) * f.features;
      exp_row(row, max_of(row, f.features), f.share, y + r * f.features, f.features);
    }
  });
}

// Relative to the largest of their group, which is known when all have been projected.
template <class T>
void features_by_group(const FeatureProblem& p, const FeatureRows& f) {
  const T* x = p.x.data<T>();
  T* y = p.y.data<T>();
  // f32 features are made where their exponents are.
  constexpr bool kInPlace = std::is_same_v<T, float>;
  const Scratch<float> room(kInPlace ? 0 : f.rows * f.features), tops(f.rows), offsets(f.rows);
  float* projected = room.get();
  if constexpr (kInPlace) projected = y;
  for_blocks(f.rows, [&](std::int64_t begin, std::int64_t end) {
    multiply_block(x + begin * f.size, end - begin, *f.directions, projected + begin * f.features);
    for (std::int64_t r = begin; r < end; ++r) {
      tops[r] = max_of(projected + r * f.features, f.features);
      offsets[r] = static_cast<float>(p.half_scale * squares_of(x + r * f.size, f.size));
    }
  });
  const std::int64_t length = p.x.size(1);
  for (std::int64_t g = 0; g < p.x.size(0); ++g) {
    float& top = p.top.data<float>()[g];
    const float before = top;
    for (std::int64_t r = g * length; r < (g + 1) * length; ++r) {
      top = std::max(top, tops[r] - offsets[r]);
    }
    p.decay.data<float>()[g] = std::isinf(before) ? 0.0f : std::exp(before - top);
    for (std::int64_t r = g * length; r < (g + 1) * length; ++r) tops[r] = offsets[r] + top;
  }
  for_blocks(f.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      exp_row(projected + r * f.features, tops[r], f.share, y + r * f.features, f.features);
    }
  });
}

void softmax_features_kernel(const FeatureProblem& p) {
  const std::int64_t features = p.y.size(2);
  const FeatureRows f{p.x.size(0) * p.x.size(1), p.x.size(2), features,
                      static_cast<float>(1 / std::sqrt(static_cast<double>(features))),
                      pack(p.directions)};
  dispatch_float(p.x.dtype(), [&]<class T>() {
    p.top.defined() ? features_by_group<T>(p, f) : features_by_row<T>(p, f);
  });
}

// d = dy y; returns its sum.
template <class T>
double products_of(const T* y, const T* dy, float* d, std::int64_t count) {
  Sum sum;
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 v = hn::Mul(load_lanes(y + i, n), load_lanes(dy + i, n));
    store_lanes(v, d + i, n);
    sum.add(v);
  });
  return sum.total();
}

template <class T>
void features_backward(const FeatureBackward& p, const Packed& turned) {
  const std::int64_t rows = p.x.size(0) * p.x.size(1), size = p.x.size(2);
  const std::int64_t features = p.y.size(2);
  const T *x = p.x.data<T>(), *y = p.y.data<T>(), *dy = p.dy.data<T>();
  T* dx = p.dx.data<T>();
  for_blocks(rows, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> d(kBlock * features), totals(kBlock), sums(kBlock * size);
    for (std::int64_t r = begin; r < end; ++r) {
      totals[r - begin] =
          static_cast<float>(p.scale * products_of(y + r * features, dy + r * features,
                                                   d.get() + (r - begin) * features, features));
    }
    multiply_block(d.get(), end - begin, turned, sums.get());
    for (std::int64_t r = begin; r < end; ++r) {
      const VecF32 total = hn::Set(F32(), totals[r - begin]);
      const float* sum = sums.get() + (r - begin) * size;
      for_lanes(size, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
        const VecF32 away = hn::Mul(total, load_lanes(x + r * size + i, n));
        store_lanes(hn::Sub(load_lanes(sum + i, n), away), dx + r * size + i, n);
      });
    }
  });
}

void softmax_features_backward_kernel(const FeatureBackward& p) {
  const std::int64_t turned[] = {1, p.directions.size(1)};
  const Tensor by_size = p.directions.view({p.directions.size(1), p.directions.size(0)}, turned, 0);
  const auto packed = pack(by_size);
  dispatch_float(p.x.dtype(), [&]<class T>() { features_backward<T>(p, *packed); });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(softmax_features_kernel);
HWY_EXPORT(softmax_features_backward_kernel);

void softmax_features(const FeatureProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(softmax_features_kernel)(problem);
}

void softmax_features_backward(const FeatureBackward& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(softmax_features_backward_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
