// The CPU target in use: a Highway target, and with it perhaps engines for dtypes of 16 bits.
#pragma once

#include "cpu/attention_engine.h"
#include "cpu/decode_engine.h"
#include "cpu/int8_engine.h"

namespace qkv::cpu {

// The bf16 engine of the target in use; null when it has none and bf16 is computed in f32.
const AttentionEngine* native_bf16_engine();

// Its decode engine for keys of this dtype; null when they are computed with in f32.
const DecodeEngine* decode_engine(DType dtype);

// Before any HWY_DYNAMIC_DISPATCH: the target is chosen by the first kernel that runs.
void settle_target();

}  // namespace qkv::cpu
