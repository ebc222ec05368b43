// A factor that a batch shares: E [k, S] times K [B, H, S, D]. Where heads lie beside the columns,
// as in a view of [B, S, H, D], they are columns themselves: one product instead of H.
#pragma once

#include <vector>

#include "qkv/tensor.h"

namespace qkv {

// The axes of b [..., K, N] along which `a` [..., M, K] is the same matrix; none where `a` has more
// axes than b.
std::vector<int> shared_axes(const Tensor& a, const Tensor& b);
// Those of them that lie beside the columns of b: as_columns is a view then.
std::vector<int> axes_beside_columns(const Tensor& b, const std::vector<int>& axes);

// x with these axes moved into its columns: their extents become 1. A view where memory allows it,
// else a copy. Nothing here is recorded.
Tensor as_columns(const Tensor& x, const std::vector<int>& axes);
// The way back, always a view: the axes get the extents they have in `like`.
Tensor from_columns(const Tensor& x, const std::vector<int>& axes, const Shape& like);

}  // namespace qkv
