// Products of int8 as an engine: how it wants a weight packed, and a product of blocks. The sums
// are those of whole numbers, so every engine finds the same ones; only the last step is floating
// point.
//
//   A (rows)     i8 [rows][stride], zeros from the inputs up to `depth`; an engine may have them
//                arranged where there are more than one
//   B (weight)   as the engine packs it, panels of columns one after the other
//   C            f32, row-major, of one task
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/gemm_engine.h"

namespace qkv::cpu {

// How the depth of a weight is cut. All groups have `group` elements but the last, which is a
// multiple of 32, too.
struct Int8Depth {
  std::int64_t depth;   // the inputs, and zeros up to a multiple of the group or 64
  std::int64_t group;   // elements that share a scale
  std::int64_t groups;  // depth / group, rounded up
};

// C [rows, columns] = sum over groups of a_scale[r][g] * scale[g][column] * (A B of that group).
struct Int8Block {
  const std::int8_t* a;
  std::int64_t a_stride;
  const float* a_scale;        // [rows][groups]
  const std::int32_t* a_sums;  // [rows][groups]: the sums of the elements of A
  const std::byte* b;          // the first panel
  std::int64_t panel_bytes;
  const float* scale;  // [panel][groups][columns of a panel]
  float* c;
  std::int64_t c_stride;
  std::int64_t rows, columns;  // columns: a multiple of the panel
  Int8Depth size;
  bool arranged;  // row_multiple rows of A at a time, by the engine
};

inline constexpr std::int64_t kMostSingleColumns = 4096;

struct Int8Engine {
  const char* name;
  std::int64_t panel;           // columns
  std::int64_t row_multiple;    // A and C may be touched up to this multiple of rows
  std::int64_t tile_rows;       // of one product when there are many rows
  std::int64_t tile_columns;    // and its columns
  std::int64_t stream_columns;  // of one product when A has few rows, and B comes from memory
  std::int64_t single_columns;  // the same for one row; at most kMostSingleColumns

  // Rearranges row_multiple rows of A where they are; null: the engine takes rows as they are.
  void (*arrange)(std::int8_t* rows, std::int64_t stride, std::int64_t depth);
  // Element (k, column) of the weight is from.row(k)[column * step]; `columns` of the panel exist,
  // the others and what lies behind the inputs become anything at all.
  void (*pack)(const Rows& from, std::int64_t inputs, std::int64_t columns, const Int8Depth& size,
               std::byte* panel);
  void (*multiply)(const Int8Block& block);
  // Around a run of products on one thread (AMX configures its tiles here); may be null.
  void (*begin)(const Int8Depth& size);
  void (*end)();
};

// The engine of the CPU target in use.
const Int8Engine& int8_engine();

// The engines themselves; null where this build or machine has none.
const Int8Engine* amx_int8_engine();
const Int8Engine* avx512_vnni_engine();
const Int8Engine* neon_i8mm_engine();
const Int8Engine* neon_dot_engine();
// For every target.
const Int8Engine& portable_int8_engine();

}  // namespace qkv::cpu
