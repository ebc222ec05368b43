// Layer norm and RMS norm with the residual sum, one source for every SIMD target: a row is read
// once, worked on in the first cache, and written once.
#include <cmath>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/norm_parameters-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

struct RowStatistics {
  float mean, rstd;
};

RowStatistics statistics_of(const float* row, std::int64_t width, bool centered, float eps) {
  const double count = static_cast<double>(width);
  const auto mean = centered ? static_cast<float>(sum_of(row, width) / count) : 0.0f;
  const VecF32 center = hn::Set(F32(), mean);
  Sum squares;
  for_lanes(width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 x = first_lanes(hn::Sub(load_lanes(row + i, n), center), n);
    squares.add(hn::Mul(x, x));
  });
  return {mean, static_cast<float>(1 / std::sqrt(squares.total() / count + eps))};
}

// row = x (+ residual, rounded as the sum that goes on)
template <class T>
void read_row(const T* x, const T* residual, T* sum, std::int64_t width, float* row) {
  for_lanes(width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    VecF32 v = load_lanes(x + i, n);
    if (residual != nullptr) {
      store_lanes(hn::Add(v, load_lanes(residual + i, n)), sum + i, n);
      v = load_lanes(sum + i, n);
    }
    store_lanes(v, row + i, n);
  });
}

template <class T>
void write_row(const float* row, const RowStatistics& s, const NormParameters& p, T* y) {
  const VecF32 mean = hn::Set(F32(), s.mean), rstd = hn::Set(F32(), s.rstd);
  for_lanes(p.width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    VecF32 v = hn::Mul(hn::Sub(load_lanes(row + i, n), mean), rstd);
    if (p.weight != nullptr) v = hn::Mul(v, load_lanes(p.weight + i, n));
    if (p.bias != nullptr) v = hn::Add(v, load_lanes(p.bias + i, n));
    store_lanes(v, y + i, n);
  });
}

template <class T>
void norm_rows(const NormProblem& p, const NormParameters& parameters, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t width = parameters.width;
  const T* x = p.x.data<T>();
  const T* residual = p.residual.defined() ? p.residual.data<T>() : nullptr;
  T* sum = p.sum.defined() ? p.sum.data<T>() : nullptr;
  const bool in_place = std::is_same_v<T, float> && residual == nullptr;
  const Scratch<float> buffer(in_place ? 0 : width);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t at = r * width;
    const float* row = buffer.get();
    if (in_place) {
      row = reinterpret_cast<const float*>(x + at);
    } else {
      read_row(x + at, residual != nullptr ? residual + at : nullptr,
               sum != nullptr ? sum + at : nullptr, width, buffer.get());
    }
    const RowStatistics s = statistics_of(row, width, p.centered, p.eps);
    if (p.mean.defined()) p.mean.data<float>()[r] = s.mean;
    if (p.rstd.defined()) p.rstd.data<float>()[r] = s.rstd;
    write_row(row, s, parameters, p.y.data<T>() + at);
  }
}

void norm_kernel(const NormProblem& p) {
  const std::int64_t width = p.x.size(-1);
  const NormParameters parameters(width, p.weight, p.bias, p.weight_offset);
  dispatch_float(p.x.dtype(), [&]<class T>() {
    for_each_rows(p.x.numel() / width, width, [&](std::int64_t begin, std::int64_t end) {
      norm_rows<T>(p, parameters, begin, end);
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(norm_kernel);

void norm(const NormProblem& problem) {
  if (problem.dropout > 0) {
    // What is left of x waits in y, whose rows are written after they have been read.
    NormProblem rest = problem;
    rest.x = problem.y;
    rest.dropout = 0;
    dropout(problem.x, problem.dropout, problem.seed, rest.x);
    return norm(rest);
  }
  settle_target();
  HWY_DYNAMIC_DISPATCH(norm_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
