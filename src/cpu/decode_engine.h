// The two products of decoding: a few query rows against keys and values that are read once, where
// they lie. Packing would cost more than it saves, and memory sets the pace.
#pragma once

#include <cstdint>

#include "qkv/dtype.h"

namespace qkv::cpu {

struct DecodeEngine {
  static constexpr std::int64_t kMostRows = 8;
  static constexpr std::int64_t kMostDepth = 512;  // head size, of keys and of values

  // Inner strides are 1; strides count elements. Left operands (queries, weights) have an even
  // number of rows and a multiple of 8 columns, 0 where there is no row, element or key. C has
  // room for as many rows, and for columns up to a multiple of 8.
  struct Left {
    const bf16* data;
    std::int64_t stride, rows;
  };
  struct Right {
    const bf16* data;
    std::int64_t stride, rows, columns;  // keys by head size
    bool from_memory = false;            // more of them than caches hold: asked for early
  };

  void (*scores)(const Left& q, const Right& keys, float* c, std::int64_t c_stride);    // = q k^T
  void (*values)(const Left& p, const Right& values, float* c, std::int64_t c_stride);  // += p v
};

// Null where this build or machine has none.
const DecodeEngine* neon_bf16_decode();

}  // namespace qkv::cpu
