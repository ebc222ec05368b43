// How the decode engines of Arm walk over keys and values. Included by the files that are compiled
// for their instructions and by no other.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstdint>

#include "cpu/decode_engine.h"
#include "cpu/prefetch.h"
#include "cpu/scratch.h"
#include "cpu/unrolled.h"

namespace qkv::cpu::neon_decode {
namespace {  // each file's own, made of its own instructions

using Left = DecodeEngine::Left;
using Right = DecodeEngine::Right;
using Bits = std::uint16_t;

inline constexpr std::int64_t kKeysAtOnce = 8;
inline constexpr std::int64_t kBlocksAhead = 2;

// Up to eight rows, copied to where all eight and a multiple of 8 columns are, zeros for the rest.
class Padded {
 public:
  const Bits* data() { return room_.get(); }

  Right copy(const Right& x, std::int64_t first) {
    const std::int64_t width = (x.columns + 7) / 8 * 8;
    Bits* to = room_.get();
    for (std::int64_t r = 0; r < kKeysAtOnce; ++r, to += width) {
      const bool present = first + r < x.rows;
      if (present) std::copy_n(x.data + (first + r) * x.stride, x.columns, to);
      std::fill(to + (present ? x.columns : 0), to + width, Bits{0});
    }
    return {room_.get(), width, kKeysAtOnce, width};
  }

 private:
  Room<Bits, kKeysAtOnce * DecodeEngine::kMostDepth> room_;
};

template <Ask kAsk>
RowsAhead<kAsk> rows_ahead(const Bits* first, const Right& x) {
  return {first, 2 * x.stride, 2 * x.columns};
}

// Calls step(k, key) for k = 0, 8, ... with key(j) = where elements k .. k + 7 of key j of kKeys
// are.
template <Ask kAsk, int kKeys, class Step>
QKV_INLINE void walk_keys(const Bits* first, const Right& keys, Step step) {
  auto next = rows_ahead<kAsk>(first + kBlocksAhead * kKeysAtOnce * keys.stride, keys);
  for (std::int64_t k = 0; k < keys.columns; k += 8) {
    next.template ask<kKeys / 4>();  // 16 bytes of each key
    step(k, [&](int j) { return first + j * keys.stride + k; });
  }
}

// Calls block(first, keys, j) for every eight keys j, j + 1, ...
template <class Block>
QKV_INLINE void for_each_eight(const Right& keys, Block block) {
  std::int64_t j = 0;
  if (keys.columns % 8 == 0) {
    for (; j + kKeysAtOnce <= keys.rows; j += kKeysAtOnce) {
      block(keys.data + j * keys.stride, keys, j);
    }
  }
  Padded padded;
  for (; j < keys.rows; j += kKeysAtOnce) block(padded.data(), padded.copy(keys, j), j);
}

// The sums of eight vectors' lanes, two neighbours to each quarter.
QKV_INLINE void store_pairs(const float32x4_t (&sum)[8], float* c, std::int64_t apart) {
  unrolled<2>([&](auto half) {
    const float32x4_t* s = sum + 4 * half;
    const float32x4_t four = vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3]));
    vst1_f32(c + 2 * half * apart, vget_low_f32(four));
    vst1_f32(c + (2 * half + 1) * apart, vget_high_f32(four));
  });
}

// c = one row's scores, eight at a time by score(q, first, keys, apart, c): two neighbours of each
// quarter, which are `apart` keys from each other, as their scores are in c. Four long streams are
// read ahead by the processor, better than if it is asked to.
template <class Score>
QKV_INLINE void score_by_quarters(const Bits* q, const Right& keys, float* c, Score score) {
  std::int64_t j = 0;
  if (keys.columns % 8 == 0) {
    const std::int64_t quarter = keys.rows / kKeysAtOnce * 2;
    for (; j < quarter; j += 2) score(q, keys.data + j * keys.stride, keys, quarter, c + j);
    j = 4 * quarter;
  }
  Padded padded;
  for (; j < keys.rows; j += kKeysAtOnce) score(q, padded.data(), padded.copy(keys, j), 2, c + j);
}

// Calls step(k, value) for k = 0, kStep, ... with value(r, v) = where columns 8 v .. of key k + r
// are.
template <int kStep, int kVectors, Ask kAsk, class Step>
QKV_INLINE void walk_values(const Right& x, std::int64_t column, RowsAhead<kAsk>& next, Step step) {
  const Bits* row = x.data + column;
  for (std::int64_t k = 0; k < x.rows; k += kStep, row += kStep * x.stride) {
    next.template ask<kStep * kVectors / 4>();
    step(k, [&](int r, int v) { return row + r * x.stride + 8 * v; });
  }
}

// Calls add(p, x) for kKeys keys at a time, the same of p and of x: as many as stay in the first
// level while their values are walked column by column.
template <std::int64_t kKeys, class Add>
QKV_INLINE void for_each_run(const Left& p, const Right& x, Add add) {
  const std::int64_t whole = x.columns % 8 == 0 ? x.rows / 8 * 8 : 0;
  std::int64_t k = 0;
  while (k < whole) {
    const std::int64_t here = std::min(kKeys, whole - k);
    add(Left{p.data + k, p.stride, p.rows},
        Right{x.data + k * x.stride, x.stride, here, x.columns, x.from_memory});
    k += here;
  }
  Padded padded;
  for (; k < x.rows; k += kKeysAtOnce) {
    add(Left{p.data + k, p.stride, p.rows}, padded.copy(x, k));
  }
}

}  // namespace
}  // namespace qkv::cpu::neon_decode
