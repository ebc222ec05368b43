// The left operand of an int8 product: rows of x, with a scale for each group of the weight.
#pragma once

#include <cstdint>

#include "cpu/attention_plan.h"
#include "cpu/int8_engine.h"

namespace qkv::cpu {

struct Int8Rows {
  std::int8_t* data;
  std::int64_t stride;  // at least size.depth
  float* scale;         // [rows][groups]
  std::int32_t* sums;   // [rows][groups]
  Int8Depth size;
  bool spread;  // x is, before it is rounded
};
// Rows of x, contiguous and `inputs` wide, rounded to int8; zeros up to the depth.
void round_rows_to_int8(const Rows& x, std::int64_t rows, std::int64_t inputs, const Int8Rows& to);

}  // namespace qkv::cpu
