// binary and scale, one source for every SIMD target.
#include <algorithm>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <BinaryOp kOp>
HWY_INLINE VecF32 combine(VecF32 a, VecF32 b) {
  if constexpr (kOp == BinaryOp::add) {
    return hn::Add(a, b);
  } else if constexpr (kOp == BinaryOp::subtract) {
    return hn::Sub(a, b);
  } else {
    return hn::Mul(a, b);
  }
}

// y = a op b, contiguous; b may be one number.
template <BinaryOp kOp, class T, class A, class B>
void combine_run(const A* a, const B* b, bool is_one, T* y, std::int64_t count) {
  if (is_one) {
    const VecF32 one = hn::Set(F32(), static_cast<float>(*b));
    for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
      store_lanes(combine<kOp>(load_lanes(a + i, n), one), y + i, n);
    });
  } else {
    for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
      store_lanes(combine<kOp>(load_lanes(a + i, n), load_lanes(b + i, n)), y + i, n);
    });
  }
}

// Any strides: through f32, a few vectors at a time.
template <BinaryOp kOp, class T, class B>
void combine_strided(const T* a, const B* b, T* y, std::int64_t count,
                     const std::array<std::int64_t, 3>& step) {
  constexpr std::int64_t kChunk = 128;
  float left[kChunk], right[kChunk];
  T result[kChunk];
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = std::min(kChunk, count - done);
    load_row(a + done * step[0], step[0], n, left);
    load_row(b + done * step[1], step[1], n, right);
    combine_run<kOp>(left, right, false, result, n);
    for (std::int64_t i = 0; i < n; ++i) y[(done + i) * step[2]] = result[i];
  }
}

template <BinaryOp kOp>
void binary_of(const Tensor& a, const Tensor& b, Tensor& y) {
  const Walk<3> walk({&a, &b, &y});
  dispatch_float(a.dtype(), [&]<class T>() {
    dispatch_float(b.dtype(), [&]<class B>() {
      const T* pa = a.data<T>();
      const B* pb = b.data<B>();
      T* py = y.data<T>();
      const bool fast = (std::is_same_v<T, B> || std::is_same_v<B, float>)&&walk.step[0] == 1 &&
                        walk.step[1] <= 1 && walk.step[1] >= 0 && walk.step[2] == 1;
      for_each_run(walk, [&](const auto& at, std::int64_t count) {
        if constexpr (std::is_same_v<T, B> || std::is_same_v<B, float>) {
          if (fast) {
            return combine_run<kOp>(pa + at[0], pb + at[1], walk.step[1] == 0, py + at[2], count);
          }
        }
        combine_strided<kOp>(pa + at[0], pb + at[1], py + at[2], count, walk.step);
      });
    });
  });
}

void binary_kernel(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  switch (op) {
    case BinaryOp::add: return binary_of<BinaryOp::add>(a, b, y);
    case BinaryOp::subtract: return binary_of<BinaryOp::subtract>(a, b, y);
    case BinaryOp::mul: return binary_of<BinaryOp::mul>(a, b, y);
  }
}

void scale_kernel(const Tensor& x, float factor, Tensor& y) {
  const Walk<2> walk({&x, &y});
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    T* py = y.data<T>();
    const bool fast = walk.step[0] == 1 && walk.step[1] == 1;
    for_each_run(walk, [&](const auto& at, std::int64_t count) {
      const T* from = px + at[0];
      T* to = py + at[1];
      if (fast) return combine_run<BinaryOp::mul>(from, &factor, true, to, count);
      for (std::int64_t i = 0; i < count; ++i) {
        to[i * walk.step[1]] = T(factor * static_cast<float>(from[i * walk.step[0]]));
      }
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(binary_kernel);
HWY_EXPORT(scale_kernel);

void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(binary_kernel)(op, a, b, y);
}

void scale(const Tensor& x, double factor, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(scale_kernel)(x, static_cast<float>(factor), y);
}

}  // namespace qkv::cpu
#endif
