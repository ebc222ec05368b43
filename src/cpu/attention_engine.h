// The two matrix products inside attention, Q K^T and P V, as an engine: how it wants its operands
// packed, and a product of tiles. One engine in f32 for every target, others where an instruction
// for bf16 decides.
#pragma once

#include <cstdint>

#include "qkv/dtype.h"

namespace qkv::cpu {

struct TileExtents {
  std::int64_t rows, columns, depth;
};

// A: rows of operands, `stride` apart. Or turned: groups of rows_together, each as the engine's
// `turn` leaves it, where the last has as many rows as the others and anything in what is none.
struct LeftOperand {
  const void* data;
  std::int64_t stride;
  bool turned = false;
};

// B as an engine packed it, with the extents it was packed with; a product may use fewer.
struct PackedOperand {
  const void* data;
  std::int64_t columns, depth;
  // Not packed at all: rows of B this far apart. Only up to uses_as_rows.
  std::int64_t row_stride = 0;
};

inline constexpr std::int64_t kMostTileKeys = 256;

struct AttentionEngine {
  const char* name;
  DType operand;                 // f32 or bf16: what Q, P and the packed K and V hold
  std::int64_t tile_rows;        // queries per block
  std::int64_t tile_keys;        // keys per tile; a multiple of depth_multiple and column_multiple,
                                 // at most kMostTileKeys
  std::int64_t row_multiple;     // A and C may be touched up to this multiple of rows
  std::int64_t depth_multiple;   // the reduction runs over this multiple; A and B are 0 there
  std::int64_t column_multiple;  // B and C have this multiple of columns
  std::int64_t rows_together;    // of A, turned, are multiplied faster; 1: none
  // V, and Q where rows_together are more than 1, is multiplied as it lies by up to so many rows of
  // the other: for them a copy does not pay. 0: never.
  std::int64_t uses_as_rows;

  // From `rows` rows of `depth` operands, `stride` operands apart, to packed columns: B(k, j) =
  // source[j][k]. Columns from `rows` on, up to `columns`, and the padding of depth become 0.
  void (*pack_transposed)(const void* source, std::int64_t stride, std::int64_t rows,
                          const TileExtents& size, void* packed);
  // The same without transposing: B(k, j) = source[k][j]; `rows` of the size.depth exist.
  void (*pack)(const void* source, std::int64_t stride, std::int64_t rows, const TileExtents& size,
               void* packed);
  // rows_together rows of A, a multiple of depth_multiple long, as they are multiplied faster. Null
  // where that is 1.
  void (*turn)(const void* rows, std::int64_t stride, std::int64_t depth, void* to);
  // C [rows, columns] f32, `c_stride` apart, (+)= A [rows, depth] times packed B.
  void (*multiply)(const LeftOperand& a, const PackedOperand& b, float* c, std::int64_t c_stride,
                   const TileExtents& size, bool accumulate);
  // to = from times the factor, rounded to bf16 by an instruction; null where there is none.
  void (*store_scaled)(const float* from, float factor, std::int64_t count, bf16* to);
  // Around a run of products on one thread (AMX configures its tiles here); may be null.
  void (*begin)();
  void (*end)();
};

// The engine for inputs of `dtype` on the CPU target in use.
const AttentionEngine& attention_engine(DType dtype);

// The engines themselves; null where this build or architecture has none.
const AttentionEngine* amx_engine();
const AttentionEngine* avx512_bf16_engine();
const AttentionEngine* neon_bf16_engine();

}  // namespace qkv::cpu
