// Turning pairs by angles, one source for every SIMD target.
#include <algorithm>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/prefetch.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

struct Angles {
  const float *cos, *sin;
  std::int64_t half;
  float sign;  // -1 turns back
};

// Pairs (i, i + half).
template <class T>
void turn_halves(const T* x, T* y, const Angles& a) {
  const VecF32 sign = hn::Set(F32(), a.sign);
  for_lanes(a.half, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 u = load_lanes(x + i, n), v = load_lanes(x + a.half + i, n);
    const VecF32 c = load_lanes(a.cos + i, n), s = hn::Mul(sign, load_lanes(a.sin + i, n));
    store_lanes(hn::Sub(hn::Mul(u, c), hn::Mul(v, s)), y + i, n);
    store_lanes(hn::Add(hn::Mul(v, c), hn::Mul(u, s)), y + a.half + i, n);
  });
}

// Pairs (2i, 2i + 1) of f32.
void turn_neighbours(const float* x, float* y, const Angles& a) {
  const F32 d;
  const VecF32 sign = hn::Set(d, a.sign);
  std::int64_t i = 0;
  for (; i + lane_count() <= a.half; i += lane_count()) {
    VecF32 u, v;
    hn::LoadInterleaved2(d, x + 2 * i, u, v);
    const VecF32 c = load_lanes(a.cos + i), s = hn::Mul(sign, load_lanes(a.sin + i));
    hn::StoreInterleaved2(hn::Sub(hn::Mul(u, c), hn::Mul(v, s)),
                          hn::Add(hn::Mul(v, c), hn::Mul(u, s)), d, y + 2 * i);
  }
  for (; i < a.half; ++i) {
    const float u = x[2 * i], v = x[2 * i + 1], s = a.sign * a.sin[i];
    y[2 * i] = u * a.cos[i] - v * s;
    y[2 * i + 1] = v * a.cos[i] + u * s;
  }
}

// x with its elements `step` apart; `buffer` holds a row of f32.
template <class T>
void turn_row(const T* x, std::int64_t step, T* y, const Angles& a, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    if (step == 1 && buffer == nullptr) return turn_neighbours(x, y, a);
  }
  load_row(x, step, 2 * a.half, buffer);
  turn_neighbours(buffer, buffer, a);
  for_lanes(2 * a.half, [&](std::int64_t i, std::int64_t n)
                            QKV_LANES_BODY { store_lanes(load_lanes(buffer + i, n), y + i, n); });
}

template <class T>
void rotary_rows(const RotaryProblem& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = p.x.size(1), length = p.x.size(2), width = p.x.size(3);
  const std::int64_t half = p.cos.size(2), step = p.x.stride(3);
  const std::int64_t per_batch = p.cos.size(0) > 1 ? length * half : 0;
  // In the order of memory: the heads of a position lie together in what a projection gives.
  const bool by_position = p.x.stride(1) < p.x.stride(2);
  const int inner = by_position ? 1 : 2, outer = by_position ? 2 : 1;
  const std::int64_t along = p.x.stride(inner), y_along = p.y.stride(inner);
  const std::int64_t count = p.x.size(inner), turn = by_position ? 0 : half;
  const bool gather = step != 1 || (p.interleaved && !std::is_same_v<T, float>);
  const Scratch<float> buffer(gather ? 2 * half : 0);
  const Scratch<T> row(gather && !p.interleaved ? 2 * half : 0);
  for (std::int64_t r = begin; r < end;) {
    const std::int64_t first = r % count, other = r / count % p.x.size(outer);
    const std::int64_t b = r / (heads * length), s = by_position ? other : first;
    const T* x = p.x.data<T>() + b * p.x.stride(0) + other * p.x.stride(outer) + first * along;
    T* y = p.y.data<T>() + b * p.y.stride(0) + other * p.y.stride(outer) + first * y_along;
    const std::int64_t at = b * per_batch + s * half;
    Angles angles{p.cos.data<float>() + at, p.sin.data<float>() + at, half,
                  p.inverse ? -1.0f : 1.0f};
    const std::int64_t stop = std::min(end, r - first + count);
    for (; r < stop; ++r, x += along, y += y_along, angles.cos += turn, angles.sin += turn) {
      if (p.interleaved) {
        turn_row(x, step, y, angles, gather ? buffer.get() : nullptr);
      } else if (gather) {
        for (std::int64_t i = 0; i < 2 * half; ++i) row[i] = x[i * step];
        turn_halves(row.get(), y, angles);
      } else {
        prefetch_row(x + kAhead * along, 2 * half);
        turn_halves(x, y, angles);
      }
      for (std::int64_t i = 2 * half; i < width; ++i) y[i] = x[i * step];
    }
  }
}

void rotary_kernel(const RotaryProblem& p) {
  const std::int64_t rows = p.x.size(0) * p.x.size(1) * p.x.size(2);
  dispatch_float(p.x.dtype(), [&]<class T>() {
    for_each_rows(rows, p.x.size(3),
                  [&](std::int64_t begin, std::int64_t end) { rotary_rows<T>(p, begin, end); });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(rotary_kernel);

void rotary(const RotaryProblem& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(rotary_kernel)(problem);
}

}  // namespace qkv::cpu
#endif
