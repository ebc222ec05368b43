// Decode: a few query rows against many keys, which are read once, where they lie. Keys are split
// into chunks of a fixed size over the threads and combined in their order.
#pragma once

#include "core/attention_problem.h"

namespace qkv::cpu {

// Few rows per key head, no statistics, no dropout: then packing keys would cost more than it
// saves.
bool is_decode(const AttentionProblem& problem, const AttentionResults& results);
void attention_decode(const AttentionProblem& problem, const AttentionResults& results);

}  // namespace qkv::cpu
