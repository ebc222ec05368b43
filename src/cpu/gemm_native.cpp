// Products of bf16 by the engines that attention has for AMX, AVX512-BF16 and BFMMLA.
#include <algorithm>

#include "cpu/gemm_engine.h"
#include "cpu/prefetch.h"
#include "cpu/scratch.h"

namespace qkv::cpu {

void pack_right_native(const GemmEngine& engine, const Source& b, const Window& window,
                       const RightTarget& to) {
  const Rows from = b.at(window.row, window.column);
  const std::int64_t depth = window.rows, columns = window.columns;
  if (from.stride == 1 && depth > 1) {
    const TileExtents size{0, round_up(columns, engine.panel), depth};
    return engine.native->pack_transposed(from.data, from.step, columns, size, to.data);
  }
  const TileExtents size{0, columns, depth};
  if (from.step == 1) return engine.native->pack(from.data, from.stride, depth, size, to.data);
  const Scratch<bf16> copy(depth * columns);
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto* row = reinterpret_cast<const bf16*>(from.row(k));
    for (std::int64_t j = 0; j < columns; ++j) copy[k * columns + j] = row[j * from.step];
  }
  engine.native->pack(copy.get(), columns, depth, size, to.data);
}

namespace {

void finish_tile(const GemmEngine& engine, const BlockProduct& p, const Window& tile) {
  if (p.finish == nullptr || tile.rows == 0) return;
  const float* c = p.c + tile.row * p.c_stride + tile.column;
  for (std::int64_t j = 0; j < tile.columns; j += kMostColumns) {
    engine.finish(c + j, p.c_stride, tile.rows, std::min(kMostColumns, tile.columns - j),
                  p.finish->at(tile.row, tile.column + j));
  }
}

void prefetch_result(const BlockProduct& p, const Window& tile) {
  if (p.finish == nullptr) return;
  const Rows y = p.finish->at(tile.row, tile.column).y;
  const auto width = static_cast<std::int64_t>(size_of(y.dtype));
  prefetch_to_write(y.data, y.stride * width, tile.rows, tile.columns * width);
}

}  // namespace

// Tile after tile down the rows, so that a strip of B stays in the first-level cache; a part of the
// next strip is asked for with each. A tile is finished after the next: what AMX stores can be read
// only when it has arrived in the cache.
void multiply_native(const GemmEngine& engine, const BlockProduct& p) {
  const auto* left = static_cast<const bf16*>(p.a);
  const bool few = p.size.rows <= engine.native_rows;  // B passes once
  const std::int64_t strip = few ? engine.stream_columns : engine.native_columns;
  const std::int64_t strip_bytes = strip * p.size.depth * 2;
  const std::int64_t tiles = (p.size.rows + engine.native_rows - 1) / engine.native_rows;
  const std::int64_t strip_stride = strip / engine.panel * p.b.panel_stride;
  Window before{};
  for (std::int64_t j = 0; j < p.size.columns; j += strip) {
    const std::int64_t columns = std::min(strip, p.size.columns - j);
    const auto* right = static_cast<const bf16*>(p.b.data) + j / strip * strip_stride;
    const PackedOperand b{right, columns, p.b.panel_stride / engine.panel};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t i = tile * engine.native_rows;
      const Window window{i, std::min(engine.native_rows, p.size.rows - i), j, columns};
      if (tiles > 1 && j + strip < p.size.columns) {
        prefetch_later(right + strip_stride, strip_bytes * tile / tiles,
                       strip_bytes * (tile + 1) / tiles);
      }
      prefetch_result(p, window);
      engine.native->multiply({left + i * engine.left_stride, engine.left_stride}, b,
                              p.c + i * p.c_stride + j, p.c_stride,
                              {window.rows, columns, p.size.depth}, p.accumulate);
      finish_tile(engine, p, before);
      before = window;
    }
  }
  finish_tile(engine, p, before);
}

}  // namespace qkv::cpu
