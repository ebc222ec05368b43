// The two products of decoding from a cache of int8, by products of whole numbers: the left side in
// two or three digits of eight bits, which keep 14 or 22 bits below the largest of a row.
#pragma once

#include <cstdint>

namespace qkv::cpu {

struct Int8Decode {
  static constexpr std::int64_t kMostDepth = 1024;    // head size, and keys of one call
  static constexpr std::int64_t kDepthMultiple = 16;  // head size, of keys and of values

  // Rows of f32, all finite, 0 from their end to a multiple of 16.
  struct Left {
    const float* data;
    std::int64_t stride, rows;
  };
  struct Right {
    const std::int8_t* data;
    std::int64_t stride, rows, columns;  // keys by head size
    bool from_memory = false;            // more of them than caches hold: asked for early
  };

  // c [rows, keys] = q k^T, and c [rows, columns] = p v. Scales of the right side are the caller's.
  void (*scores)(const Left& q, const Right& keys, float* c, std::int64_t c_stride);
  void (*values)(const Left& p, const Right& values, float* c, std::int64_t c_stride);
};

// Null where this machine has none. Three digits for rows that come from f32, two for 16 bits.
const Int8Decode* neon_int8_decode(int digits);

}  // namespace qkv::cpu
