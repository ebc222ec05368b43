// How backward divides the pairs of a sequence into tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_problem.h"

namespace qkv::cpu {

// Some keys, and the rows that may see one of them.
struct GradientRange {
  std::int64_t first_key = 0, keys = 0;
  std::int64_t first_row = 0, rows = 0;
};

// The parts of a sequence, the same for each of its heads. Each has keys of its own, or rows of its
// own where keys are few: partial sums of the other kind are what a split costs.
struct GradientSplit {
  std::vector<GradientRange> parts;
  bool owns_queries = false,
       owns_keys = false;  // whether no two parts have rows, or keys, in common
};
// Depends on shapes and masks alone.
GradientSplit split_gradient(const AttentionProblem& problem, std::int64_t sequence);

}  // namespace qkv::cpu
