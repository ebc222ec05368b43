// The two products of decoding from 16-bit keys and values: a few query rows against what is read
// once, where it lies. Packing would cost more than it saves, and memory sets the pace.
#pragma once

#include <cstdint>

#include "qkv/dtype.h"

namespace qkv::cpu {

struct DecodeEngine {
  static constexpr std::int64_t kMostRows = 8;
  static constexpr std::int64_t kMostDepth = 512;  // head size, of keys and of values

  // Elements are the bits of bf16 or f16, as `dtype` says. Inner strides are 1; strides count
  // elements. Left operands (queries, weights) have an even number of rows, or one, and a multiple
  // of 8 columns, 0 where there is no row, element or key. C has room for as many rows, and for
  // columns up to a multiple of 8.
  struct Left {
    const std::uint16_t* data;
    std::int64_t stride, rows;
  };
  struct Right {
    const std::uint16_t* data;
    std::int64_t stride, rows, columns;  // keys by head size
    bool from_memory = false;            // more of them than caches hold: asked for early
  };

  DType dtype;
  // What a weight of 1 is given as: the largest power of 2 for which those far below it keep their
  // digits.
  float weight_unit;
  void (*scores)(const Left& q, const Right& keys, float* c, std::int64_t c_stride);    // = q k^T
  void (*values)(const Left& p, const Right& values, float* c, std::int64_t c_stride);  // += p v
};

// Null where this build or machine has none.
const DecodeEngine* neon_bf16_decode();
const DecodeEngine* neon_f16_decode();

}  // namespace qkv::cpu
