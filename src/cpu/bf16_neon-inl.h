// Words for writing products of bf16 with BFMMLA: cells, zips, blocks of sums. Included by the
// files that are compiled for these instructions and by no other.
//
// BFMMLA multiplies 2x4 by 4x2. Both operands hold two rows of four along the reduction: a cell
// [x0: k0..k3 | x1: k0..k3]. Subnormal bf16 count as zero, and products are rounded to odd before
// they are summed, as Arm defines it.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/unrolled.h"
#include "qkv/dtype.h"

namespace qkv::cpu::bf16_neon {

using Cell = bfloat16x8_t;
using Sums = float32x4_t;  // [x0 y0, x0 y1, x1 y0, x1 y1]

QKV_INLINE Cell zero() { return vreinterpretq_bf16_u16(vdupq_n_u16(0)); }
QKV_INLINE Cell load(const std::uint16_t* bits) { return vreinterpretq_bf16_u16(vld1q_u16(bits)); }
QKV_INLINE Cell load(const bf16* x) { return load(&x->bits); }
QKV_INLINE void store(std::uint16_t* bits, Cell cell) {
  vst1q_u16(bits, vreinterpretq_u16_bf16(cell));
}
QKV_INLINE void store(bf16* x, Cell cell) { store(&x->bits, cell); }

// Four elements, twice.
QKV_INLINE Cell load_twice(const bf16* x) {
  std::uint64_t four;
  std::memcpy(&four, x, sizeof four);
  return vreinterpretq_bf16_u64(vld1q_dup_u64(&four));
}

// The first `count` of 8 elements and zeros; nothing past them is read.
QKV_INLINE Cell load(const bf16* x, std::int64_t count) {
  bf16 part[8];
  for (std::int64_t i = 0; i < 8; ++i) part[i] = i < count ? x[i] : bf16();
  return load(part);
}

// [lower half of x | lower half of y], and the same of the upper halves.
QKV_INLINE Cell lower(Cell x, Cell y) {
  return vreinterpretq_bf16_u64(vzip1q_u64(vreinterpretq_u64_bf16(x), vreinterpretq_u64_bf16(y)));
}
QKV_INLINE Cell upper(Cell x, Cell y) {
  return vreinterpretq_bf16_u64(vzip2q_u64(vreinterpretq_u64_bf16(x), vreinterpretq_u64_bf16(y)));
}
QKV_INLINE Sums lower(Sums x, Sums y) {
  return vreinterpretq_f32_u64(vzip1q_u64(vreinterpretq_u64_f32(x), vreinterpretq_u64_f32(y)));
}
QKV_INLINE Sums upper(Sums x, Sums y) {
  return vreinterpretq_f32_u64(vzip2q_u64(vreinterpretq_u64_f32(x), vreinterpretq_u64_f32(y)));
}
// x0 y0 x1 y1 ... of the lower halves, and of the upper halves.
QKV_INLINE Cell zip_lower(Cell x, Cell y) {
  return vreinterpretq_bf16_u16(vzip1q_u16(vreinterpretq_u16_bf16(x), vreinterpretq_u16_bf16(y)));
}
QKV_INLINE Cell zip_upper(Cell x, Cell y) {
  return vreinterpretq_bf16_u16(vzip2q_u16(vreinterpretq_u16_bf16(x), vreinterpretq_u16_bf16(y)));
}

// Four rows of eight to four cells: columns 01, 23, 45, 67, each along the four rows.
QKV_INLINE void transpose(Cell (&x)[4]) {
  const Cell even = zip_lower(x[0], x[2]), odd = zip_lower(x[1], x[3]);
  const Cell even_up = zip_upper(x[0], x[2]), odd_up = zip_upper(x[1], x[3]);
  x[0] = zip_lower(even, odd);
  x[1] = zip_upper(even, odd);
  x[2] = zip_lower(even_up, odd_up);
  x[3] = zip_upper(even_up, odd_up);
}

// kPairs pairs of rows by eight columns of C, written or added to what is there.
template <bool kAdd, int kPairs>
QKV_INLINE void put_block(float* c, std::int64_t stride, const Sums (&sum)[kPairs][4]) {
  unrolled<kPairs>([&](auto i) {
    unrolled<2>([&](auto half) {
      float *row0 = c + 2 * i * stride + 4 * half, *row1 = row0 + stride;
      const Sums left = sum[i][2 * half], right = sum[i][2 * half + 1];
      const Sums x = lower(left, right), y = upper(left, right);
      vst1q_f32(row0, kAdd ? vaddq_f32(vld1q_f32(row0), x) : x);
      vst1q_f32(row1, kAdd ? vaddq_f32(vld1q_f32(row1), y) : y);
    });
  });
}

// Rows x0 and x1 of `depth` (a multiple of 8) as cells, `step` elements from one to the next.
template <class Element>
QKV_INLINE void pack_pair(const Element* x0, const Element* x1, std::int64_t depth, Element* cells,
                          std::int64_t step) {
  for (std::int64_t k = 0; k < depth; k += 8, cells += 2 * step) {
    const Cell r0 = load(x0 + k), r1 = load(x1 + k);
    store(cells, lower(r0, r1));
    store(cells + step, upper(r0, r1));
  }
}

}  // namespace qkv::cpu::bf16_neon
