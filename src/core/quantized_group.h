// The groups of int8 weights that share a scale.
#pragma once

#include <cstdint>

namespace qkv {

// How many of `inputs` share a scale where there are `groups` scales: all of them, or 128, 64 or
// 32, the last group being shorter where need be. 0 when it is none of these.
inline std::int64_t quantized_group(std::int64_t inputs, std::int64_t groups) {
  if (groups == 1) return inputs > 0 ? inputs : 1;
  for (const std::int64_t group : {128, 64, 32}) {
    if ((inputs + group - 1) / group == groups) return group;
  }
  return 0;
}

}  // namespace qkv
