// Sums of chunks on the way from chunk to chunk, the triangle within one, and what is divided by
// sums at the end.
#include <algorithm>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/linear_kernels.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/running_sum.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// y[i] becomes carry[i], which becomes carry[i] + x[i].
template <class T>
void step(const float* x, float* carry, T* y, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 before = load_lanes(carry + i, n), here = load_lanes(x + i, n);
    store_lanes(before, y + i, n);
    store_lanes(hn::Add(before, here), carry + i, n);
  });
}

void running_sum_kernel(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) {
  const std::int64_t groups = x.size(0), chunks = x.size(1), width = x.size(2);
  if (x.numel() == 0) return;
  constexpr std::int64_t kColumns = 4096;  // of the carry: they stay in the first cache
  const std::int64_t parts = (width + kColumns - 1) / kColumns;
  const float* data = x.data<float>();
  float* sums = carry.data<float>();
  dispatch_float(y.dtype(), [&]<class T>() {
    T* to = y.data<T>();
    for_each_rows(groups * parts, chunks * std::min(width, kColumns),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t task = begin; task < end; ++task) {
                      const std::int64_t g = task / parts, first = task % parts * kColumns;
                      const std::int64_t count = std::min(kColumns, width - first);
                      for (std::int64_t n = 0; n < chunks; ++n) {
                        const std::int64_t chunk = reverse ? chunks - 1 - n : n;
                        const std::int64_t at = (g * chunks + chunk) * width + first;
                        step(data + at, sums + g * width + first, to + at, count);
                      }
                    }
                  });
  });
}

template <class From, class To>
void divide_each(const Tensor& x, const Tensor& by, Tensor& y) {
  const std::int64_t width = x.size(1), apart = x.stride(0);
  const From* from = x.data<From>();
  To* to = y.data<To>();
  const float* divisors = by.data<float>();
  for_each_rows(x.size(0), width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const VecF32 divisor = hn::Set(F32(), divisors[r]);
      for_lanes(width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
        store_lanes(hn::Div(load_lanes(from + r * apart + i, n), divisor), to + r * width + i, n);
      });
    }
  });
}

void divide_rows_kernel(const Tensor& x, const Tensor& by, Tensor& y) {
  dispatch_float(x.dtype(), [&]<class From>() {
    dispatch_float(y.dtype(), [&]<class To>() { divide_each<From, To>(x, by, y); });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(running_sum_kernel);
HWY_EXPORT(divide_rows_kernel);

void running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(running_sum_kernel)(x, carry, reverse, y);
}

void divide_rows(const Tensor& x, const Tensor& by, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(divide_rows_kernel)(x, by, y);
}

void keep_triangle(const Tensor& x, bool upper, Tensor& y) {
  const std::int64_t size = x.size(1);
  const float* data = x.data<float>();
  dispatch_float(y.dtype(), [&]<class T>() {
    T* to = y.data<T>();
    for_each_rows(x.size(0) * size, size, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t diagonal = r % size;
        for (std::int64_t i = 0; i < size; ++i) {
          const bool is_kept = upper ? i >= diagonal : i <= diagonal;
          to[r * size + i] = is_kept ? T(data[r * size + i]) : T(0.0f);
        }
      }
    });
  });
}

}  // namespace qkv::cpu
#endif
