#pragma once

#include "qkv/ops.h"

namespace qkv {

// Error that names `op` and the option that is out of its range.
void check_sample_options(const char* op, const SampleOptions& options);

}  // namespace qkv
