// Where a number that is not finite began.
#pragma once

#include <string>

#include "qkv/data.h"
#include "qkv/train.h"

namespace qkv {

struct FaultyStep {
  const Batch* batch;
  std::uint64_t seed;  // of its dropout
  std::int64_t step;   // its number
  DType dtype;         // of its residual stream
};
// Runs the step again, watching: "encoder.2.self head 5: its queries are not finite". The weights
// must be those the step began with.
std::string find_fault(Model& model, const FaultyStep& step);

}  // namespace qkv
