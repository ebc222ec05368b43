// Rows of a table of any dtype: what embedding is made of. In embedding.cpp.
#pragma once

#include "qkv/tensor.h"

namespace qkv {

// Checked against the table, i64 [n].
Tensor row_ids(const Tensor& ids, const Tensor& table);
// table [V, D], contiguous -> [..., D] for ids of any shape; `rows` are row_ids(ids, table).
Tensor take_rows(const Tensor& rows, const Tensor& table, const Shape& ids);

}  // namespace qkv
