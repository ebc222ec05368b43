// The matrix product as an engine: how it wants its operands packed, a product of blocks, and what
// happens to the sums. src/cpu/gemm.cpp makes blocks and tasks of them.
//
//   A (left)   [block of depth][row][left_stride]: a block of depth at a time, rows as they are or
//              row_multiple of them turned, whatever the engine multiplies best
//   B (right)  [panel of columns][depth][panel columns] in f32, or as an AttentionEngine packs it
//   C          f32, row-major, of one task
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/attention_engine.h"
#include "cpu/attention_plan.h"
#include "qkv/activation.h"
#include "qkv/dtype.h"

namespace qkv::cpu {

// A matrix in memory. Rows come in groups (a batch), `group_stride` apart.
struct Source {
  const std::byte* data;
  DType dtype;
  std::int64_t row, step;  // strides between rows and within one, in elements
  std::int64_t group, group_stride;

  // Element (i, j) and what follows it in its group.
  Rows at(std::int64_t i, std::int64_t j) const {
    const std::int64_t element = i / group * group_stride + i % group * row + j * step;
    const std::int64_t bytes = element * static_cast<std::int64_t>(size_of(dtype));
    return {const_cast<std::byte*>(data) + bytes, dtype, row, step};
  }
};

// Rows [row, row + rows) and columns [column, column + columns) of a Source.
struct Window {
  std::int64_t row, rows, column, columns;
};

// Where rows of A go.
struct LeftTarget {
  void* data;
  DType dtype;  // f32 or bf16
  bool round;   // to bf16, although stored as f32
  std::int64_t stride;
  std::int64_t columns, rows;  // zeros from the columns and rows of the window up to these
};
// Panels of B: where they go, or where they are.
struct RightTarget {
  void* data;
  DType dtype;
  std::int64_t panel_stride;  // elements
};
struct RightBlock {
  const void* data;
  DType dtype;
  std::int64_t panel_stride;
};

// y = activation(c + bias), of a block.
struct Finish {
  Rows bias;  // one row; data is null without
  Activation activation;
  Rows y;

  // The same from another row and column on.
  Finish at(std::int64_t row, std::int64_t column) const {
    Finish part{bias, activation, y.from(row)};
    part.y.data += column * static_cast<std::int64_t>(size_of(y.dtype));
    if (bias.data != nullptr) {
      part.bias.data += column * static_cast<std::int64_t>(size_of(bias.dtype));
    }
    return part;
  }
};

struct GemmEngine;

// C [rows, columns] (+)= A [rows, depth] B [depth, columns] for a block of the depth.
struct BlockProduct {
  const void* a;
  RightBlock b;
  float* c;
  std::int64_t c_stride;
  TileExtents size;
  bool accumulate;       // the finished sum of this block is added to C
  const Finish* finish;  // of the last block: results go to y while in cache, and C is undefined
};

struct GemmEngine {
  DType operand;              // f32 or bf16: what A is packed to
  std::int64_t panel;         // columns of a panel of B; C has a multiple of them
  std::int64_t row_multiple;  // A and C may be touched up to this multiple of rows
  std::int64_t depth_multiple;
  std::int64_t depth_block;     // of one product
  std::int64_t left_stride;     // between rows of A: depth_block and a little, against aliasing
  std::int64_t most_rows;       // of a task, and its columns: what it reads again and again of A
  std::int64_t most_columns;    // and C stays in the second-level cache
  std::int64_t stream_columns;  // at once when A has few rows, and B comes from memory
  std::int64_t stream_rows;     // up to these, the panels of stream_columns lie far apart
  std::int64_t narrow_rows;     // up to these, B may be 16 bits wide where operand is f32
  std::int64_t thread_tasks;    // of a product: few are long streams, many are shared evenly

  void (*pack_left)(const Source& a, const Window& window, const LeftTarget& to);
  // The window's rows run along the depth. Columns up to the panel's end become 0.
  void (*pack_right)(const GemmEngine& engine, const Source& b, const Window& window,
                     const RightTarget& to);
  // Panels of 16 bits as panels of f32, one after the other; null where there are none.
  void (*widen)(const RightBlock& b, std::int64_t depth, std::int64_t panels, float* to);
  void (*multiply)(const GemmEngine& engine, const BlockProduct& block);
  void (*finish)(const float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                 const Finish& finish);
  const AttentionEngine* native;             // packs and multiplies where operand is bf16
  std::int64_t native_rows, native_columns;  // of one of its products
};

// The engine for a right operand of `dtype` on the CPU target in use.
GemmEngine gemm_engine(DType dtype);

// Most columns that `finish` takes at once, and most stream_rows of an engine.
inline constexpr std::int64_t kMostColumns = 64, kMostStreamRows = 2;

// Packing and multiplying by an AttentionEngine for bf16.
void pack_right_native(const GemmEngine& engine, const Source& b, const Window& window,
                       const RightTarget& to);
void multiply_native(const GemmEngine& engine, const BlockProduct& block);

}  // namespace qkv::cpu
