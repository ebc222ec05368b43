// Between floating point and int8, one source for every SIMD target.
#include <algorithm>
#include <vector>

#include "core/dispatch.h"
#include "cpu/int8_rows.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/gemm_pack-inl.h"
#include "cpu/int8_rows-inl.h"
#include "cpu/spread-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// Rows of [A, B, S, width] tensors, some at a time: body(a, b, s, rows) for rows s .. s + rows.
template <class Body>
void for_each_block(const Tensor& x, Body&& body) {
  constexpr std::int64_t kRows = 16;  // read together where they lie side by side
  const std::int64_t heads = x.size(1), length = x.size(2);
  const std::int64_t blocks = (length + kRows - 1) / kRows;
  const std::int64_t rows = std::min(kRows, length);
  for_each_rows(x.size(0) * heads * blocks, rows * x.size(3),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) {
                    const std::int64_t pair = i / blocks, s = i % blocks * kRows;
                    body(pair / heads, pair % heads, s, std::min(kRows, length - s));
                  }
                });
}

float* scale_at(const Tensor& scale, std::int64_t a, std::int64_t b, std::int64_t s,
                std::int64_t g) {
  return scale.data<float>() + a * scale.stride(0) + b * scale.stride(1) + s * scale.stride(2) +
         g * scale.stride(3);
}

void quantize_kernel(const Tensor& x, const Rounding& how, Tensor& values, Tensor& scale) {
  const std::int64_t width = x.size(3);
  for_each_block(x, [&](std::int64_t a, std::int64_t b, std::int64_t s, std::int64_t rows) {
    const Scratch<float> wide(rows * width);
    load_block(rows_of(x, a, b, s), {rows, width, 0}, wide.get(), width);
    const Rows to = rows_of(values, a, b, s);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = wide.get() + r * width;
      const float root = how.spread ? spread_row(row, width, row) : 1;
      for (std::int64_t k = 0; k < width; k += how.group) {
        const float* from = row + k;
        const std::int64_t count = std::min(how.group, width - k);
        const Int8Scale found = int8_scale(from, count);
        round_to_int8(from, count, found.inverse, reinterpret_cast<std::int8_t*>(to.row(r)) + k);
        *scale_at(scale, a, b, s + r, k / how.group) = found.scale * root;
      }
    }
  });
}

void dequantize_kernel(const Tensor& values, const Tensor& scale, const Rounding& how, Tensor& y) {
  const std::int64_t width = values.size(3);
  for_each_block(values, [&](std::int64_t a, std::int64_t b, std::int64_t s, std::int64_t rows) {
    const Scratch<float> wide(width);
    const Scratch<std::int8_t> run(width);
    const Rows from = rows_of(values, a, b, s), to = rows_of(y, a, b, s);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const std::int8_t*>(from.row(r));
      if (from.step != 1) {
        for (std::int64_t k = 0; k < width; ++k) run[k] = row[k * from.step];
        row = run.get();
      }
      for (std::int64_t k = 0; k < width; k += how.group) {
        widen_int8(row + k, std::min(how.group, width - k),
                   *scale_at(scale, a, b, s + r, k / how.group), wide.get() + k);
      }
      if (how.spread) {
        const float root = spread_row(wide.get(), width, wide.get());
        for (std::int64_t k = 0; k < width; ++k) wide[k] *= root;
      }
      store_row(wide.get(), width, to, r);
    }
  });
}

void round_rows_kernel(const Rows& x, std::int64_t rows, std::int64_t inputs, const Int8Rows& to) {
  const Scratch<float> wide(x.dtype == DType::f32 && !to.spread ? 0 : inputs);
  const Int8Depth& size = to.size;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto* row = reinterpret_cast<const float*>(x.row(r));
    if (x.dtype != DType::f32) {
      load_rows(x.from(r), 1, inputs, wide.get(), inputs);
      row = wide.get();
    }
    float root = 1;
    if (to.spread) {
      root = spread_row(row, inputs, wide.get());
      row = wide.get();
    }
    std::int8_t* out = to.data + r * to.stride;
    for (std::int64_t g = 0; g < size.groups; ++g) {
      const std::int64_t k = g * size.group, count = std::min(size.group, inputs - k);
      const Int8Scale found = int8_scale(row + k, count);
      to.scale[r * size.groups + g] = found.scale * root;
      to.sums[r * size.groups + g] = round_to_int8(row + k, count, found.inverse, out + k);
    }
    std::fill(out + inputs, out + size.depth, std::int8_t{0});
  }
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(quantize_kernel);
HWY_EXPORT(dequantize_kernel);
HWY_EXPORT(round_rows_kernel);

void quantize(const Tensor& x, const Rounding& how, Tensor& values, Tensor& scale) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(quantize_kernel)(x, how, values, scale);
}

void dequantize(const Tensor& values, const Tensor& scale, const Rounding& how, Tensor& y) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(dequantize_kernel)(values, scale, how, y);
}

void round_rows_to_int8(const Rows& x, std::int64_t rows, std::int64_t inputs, const Int8Rows& to) {
  HWY_DYNAMIC_DISPATCH(round_rows_kernel)(x, rows, inputs, to);
}

}  // namespace qkv::cpu
#endif
