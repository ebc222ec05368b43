// pack and linear of int8 weights; matmul.cpp has those of floating-point ones.
#pragma once

#include <memory>

#include "core/op_problems.h"

namespace qkv::cpu {

std::shared_ptr<const Packed> pack_int8(const Int8Weight& weight);
void linear_int8(const LinearProblem& problem);

}  // namespace qkv::cpu
