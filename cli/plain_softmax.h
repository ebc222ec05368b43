// The softmax of the three-step computation: three passes over a row, vectorised.
#pragma once

#include <cstdint>

namespace qkv::cli {

// row[i] = exp(row[i] - max) / sum, in place; count >= 1.
void plain_softmax(float* row, std::int64_t count);

}  // namespace qkv::cli
