// Between [B, S, heads * D] and [B, heads, S, D].
#pragma once

#include "qkv/ops.h"

namespace qkv::nn {

// A view.
inline Tensor split_heads(const Tensor& x, std::int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

// Attention lays its result out so that this is a view, too.
inline Tensor merge_heads(const Tensor& x) {
  return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace qkv::nn
