// What keys receive, for Hopper GPUs: the sums over rows of weights that are made once more, behind
// a forward pass that has left each row's terms.
#pragma once

#include "cuda/attention_forward_sm90.h"

namespace qkv::cuda {

// Rows of the terms of a sequence and head: whole tiles of any shape.
inline std::int64_t sm90_term_rows(const Sm90Forward& call) {
  constexpr std::int64_t kLargestTile = 128;
  return (call.longest + kLargestTile - 1) / kLargestTile * kLargestTile;
}

// Serves what attention_forward_sm90 does with statistics. `terms` are [sequence][head]
// [sm90_term_rows]; those of rows that see nothing, or do not exist, may be anything.
void attention_received_sm90(const Sm90Forward& call, const Sm90RowTerms* terms,
                             cudaStream_t stream);

}  // namespace qkv::cuda
