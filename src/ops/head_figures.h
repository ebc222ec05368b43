// Numbers that stand for whole heads.
#pragma once

#include <vector>

#include "core/op_problems.h"

namespace qkv {

// f32 [sum of the heads of all items], one item after the other; no items: undefined. All are
// computed together: a report of many layers costs no more calls than one of a single layer. Not
// recorded.
Tensor head_figures(const std::vector<HeadFigures>& items);

}  // namespace qkv
