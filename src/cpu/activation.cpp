// activate, gated and their gradients, one source for every SIMD target.
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/activation.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/activation-inl.h"
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <Activation kFunction, class T>
void activate_run(const T* x, T* y, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    store_lanes(apply<kFunction>(F32(), load_lanes(x + i, n)), y + i, n);
  });
}

template <Activation kFunction, class T>
void activate_backward_run(const T* x, const T* dy, T* dx, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 slope = apply_derivative<kFunction>(F32(), load_lanes(x + i, n));
    store_lanes(hn::Mul(load_lanes(dy + i, n), slope), dx + i, n);
  });
}

template <Activation kFunction, class T>
void gated_run(const T* gate, const T* up, T* y, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 value = apply<kFunction>(F32(), load_lanes(gate + i, n));
    store_lanes(hn::Mul(value, load_lanes(up + i, n)), y + i, n);
  });
}

template <class T>
struct GatedRow {
  const T *gate, *up, *dy;
  T *dgate, *dup;
};

template <Activation kFunction, class T>
void gated_backward_run(const GatedRow<T>& row, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 gate = load_lanes(row.gate + i, n), dy = load_lanes(row.dy + i, n);
    const VecF32 dvalue = hn::Mul(dy, load_lanes(row.up + i, n));
    store_lanes(hn::Mul(dvalue, apply_derivative<kFunction>(F32(), gate)), row.dgate + i, n);
    store_lanes(hn::Mul(dy, apply<kFunction>(F32(), gate)), row.dup + i, n);
  });
}

// A run whose elements are apart, as a contiguous copy in `buffer`.
template <class T>
const T* gathered(const T* x, std::int64_t step, std::int64_t count, T* buffer) {
  if (step == 1) return x;
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = x[i * step];
  return buffer;
}

void activate_kernel(Activation f, const Tensor& x, Tensor& y) {
  dispatch_float(x.dtype(), [&]<class T>() {
    dispatch_activation(f, [&]<Activation kFunction>() {
      const T* from = x.data<T>();
      T* to = y.data<T>();
      for_each_span(x.numel(), [&](std::int64_t begin, std::int64_t end) {
        activate_run<kFunction>(from + begin, to + begin, end - begin);
      });
    });
  });
}

void activate_backward_kernel(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) {
  dispatch_float(x.dtype(), [&]<class T>() {
    dispatch_activation(f, [&]<Activation kFunction>() {
      const T* px = x.data<T>();
      const T* pdy = dy.data<T>();
      T* pdx = dx.data<T>();
      for_each_span(x.numel(), [&](std::int64_t begin, std::int64_t end) {
        activate_backward_run<kFunction>(px + begin, pdy + begin, pdx + begin, end - begin);
      });
    });
  });
}

void gated_kernel(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  const Walk<3> walk({&gate, &up, &y});
  dispatch_float(gate.dtype(), [&]<class T>() {
    dispatch_activation(f, [&]<Activation kFunction>() {
      const T* pg = gate.data<T>();
      const T* pu = up.data<T>();
      T* py = y.data<T>();
      for_each_run(walk, [&](const auto& at, std::int64_t count) {
        const bool strided = walk.step[0] != 1 || walk.step[1] != 1;
        const Scratch<T> buffer(strided ? 2 * count : 0);
        gated_run<kFunction>(gathered(pg + at[0], walk.step[0], count, buffer.get()),
                             gathered(pu + at[1], walk.step[1], count, buffer.get() + count),
                             py + at[2], count);
      });
    });
  });
}

void gated_backward_kernel(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                           Tensor& dgate, Tensor& dup) {
  const Walk<4> walk({&gate, &up, &dy, &dgate});
  dispatch_float(gate.dtype(), [&]<class T>() {
    dispatch_activation(f, [&]<Activation kFunction>() {
      const T* pg = gate.data<T>();
      const T* pu = up.data<T>();
      const T* pdy = dy.data<T>();
      T* pdg = dgate.data<T>();
      T* pdu = dup.data<T>();
      for_each_run(walk, [&](const auto& at, std::int64_t count) {
        const bool strided = walk.step[0] != 1 || walk.step[1] != 1 || walk.step[2] != 1;
        const Scratch<T> buffer(strided ? 3 * count : 0);
        const GatedRow<T> row{gathered(pg + at[0], walk.step[0], count, buffer.get()),
                              gathered(pu + at[1], walk.step[1], count, buffer.get() + count),
                              gathered(pdy + at[2], walk.step[2], count, buffer.get() + 2 * count),
                              pdg + at[3], pdu + at[3]};
        gated_backward_run<kFunction>(row, count);
      });
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(activate_kernel);
HWY_EXPORT(activate_backward_kernel);
HWY_EXPORT(gated_kernel);
HWY_EXPORT(gated_backward_kernel);

void activate(Activation f, const Tensor& x, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(activate_kernel)(f, x, y);
}

void activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(activate_backward_kernel)(f, x, dy, dx);
}

void gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(gated_kernel)(f, gate, up, y);
}

void gated_backward(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                    Tensor& dgate, Tensor& dup) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(gated_backward_kernel)(f, gate, up, dy, dgate, dup);
}

}  // namespace qkv::cpu
#endif
