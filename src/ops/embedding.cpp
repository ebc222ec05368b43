#include "core/backend.h"
#include "ops/checks.h"
#include "ops/take_rows.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"

namespace qkv {

Tensor row_ids(const Tensor& ids, const Tensor& table) {
  check_defined("embedding", "ids", ids);
  check(ids.dtype() == DType::i64 || ids.dtype() == DType::i32,
        "embedding: ids must be i32 or i64, got {} {}", ids.dtype(), ids.shape());
  const Tensor rows = reshape(contiguous(to(ids, DType::i64)), {ids.numel()});
  // On another device a wrong id is known too late to be refused: it gives NaN.
  if (rows.device() == kCpu) {
    const auto* id = rows.data<std::int64_t>();
    for (std::int64_t i = 0; i < rows.numel(); ++i) {
      check(id[i] >= 0 && id[i] < table.size(0),
            "embedding: id {} at position {} is not in the table of {} rows", id[i], i,
            table.size(0));
    }
  }
  return to(rows, table.device());
}

Tensor take_rows(const Tensor& rows, const Tensor& table, const Shape& ids) {
  std::vector<std::int64_t> extents(ids.extents().begin(), ids.extents().end());
  extents.push_back(table.size(1));
  Tensor y = Tensor::empty(Shape(extents), {table.dtype(), table.device()});
  if (y.numel() > 0) {
    Tensor flat =
        y.view({rows.numel(), table.size(1)}, std::vector{table.size(1), std::int64_t{1}}, 0);
    backend(table.device()).embedding(rows, table, flat);
  }
  return y;
}

Tensor embedding(const Tensor& ids, const Tensor& table, std::int64_t padding) {
  check_defined("embedding", "table", table);
  check(is_floating(table.dtype()) && table.rank() == 2,
        "embedding: table must be floating point [V, D], got {} {}", table.dtype(), table.shape());
  const Tensor rows = row_ids(ids, table);
  const Tensor source = contiguous(table);
  const Tensor y = take_rows(rows, source, ids.shape());
  return Tape::record("embedding", {source}, y,
                      [rows, padding, shape = table.shape()](const Tensor& dy) {
                        Tensor dtable = Tensor::zeros(shape, {DType::f32, dy.device()});
                        const Tensor flat = reshape(contiguous(dy), {rows.numel(), shape[1]});
                        if (dy.numel() > 0) {
                          backend(dy.device()).embedding_backward(rows, flat, padding, dtable);
                        }
                        return std::vector{dtable};
                      });
}

Tensor embedding(const Tensor& ids, const Quantized& table) {
  check_defined("embedding", "table", table.values);
  check_defined("embedding", "scale", table.scale);
  check(table.values.rank() == 2 && table.scale.rank() == 2 &&
            table.scale.size(0) == table.values.size(0),
        "embedding: table must be [V, D] with scales [V, groups], got {} and {}",
        table.values.shape(), table.scale.shape());
  const TapePause pause;
  const Tensor rows = row_ids(ids, table.values);
  return dequantize({take_rows(rows, contiguous(table.values), ids.shape()),
                     take_rows(rows, contiguous(table.scale), ids.shape()), table.spread});
}

}  // namespace qkv
