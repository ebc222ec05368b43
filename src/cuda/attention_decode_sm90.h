// Attention forward for few query rows and many keys, as in generation: reading the keys and values
// once, as fast as memory gives them, is all that counts. The keys of each key head are split over
// the chip; the block that finishes last puts the parts together, in a fixed order.
#pragma once

#include "cuda/attention_forward_sm90.h"

namespace qkv::cuda {

// How a call is cut up. `parts` is how many blocks share the keys of one key head and sequence.
struct DecodePlan {
  int row_blocks = 0;  // of 16 rows: the query rows of all heads that share a key head
  int parts = 0;
  bool alone = false;  // a block has a multiprocessor for itself, and larger tiles
  std::int64_t workspace_bytes = 0;
};
// Pages of keys are multiples of this: no tile of keys lies in two of them.
inline constexpr std::int64_t kDecodeTile = 32;
DecodePlan plan_decode(const Sm90Forward& call);

// True when splitting keys serves the call better than attention_forward_sm90 would.
bool decode_is_better(const Sm90Forward& call);
// For calls that why_not_sm90_forward has nothing against, softcap included. `workspace` is
// plan.workspace_bytes of device memory.
void attention_decode(const Sm90Forward& call, const DecodePlan& plan, void* workspace,
                      cudaStream_t stream);

}  // namespace qkv::cuda
