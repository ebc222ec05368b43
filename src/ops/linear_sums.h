// The steps of attention by features, for sequences that come whole or in segments. All of them are
// recorded; sums are f32 [B, Hk, F, W], as in LinearState.
#pragma once

#include "qkv/linear_attention.h"

namespace qkv {

void check_parts(const Tensor& queries, const Tensor& keys, const Tensor& values);
void check_causal(const Tensor& queries, const Tensor& keys, bool causal);

// Puts keys and values into the sums.
void add_keys(const KeyFeatures& keys, const Tensor& values, LinearState& state);
// What queries get from the sums of all they see; `width` is that of the values.
Tensor attend_to_sums(const Tensor& queries, const Tensor& sums, std::int64_t width);
// What queries get that see the keys of the state and those up to their own position; all keys are
// in the state then.
Tensor attend_in_order(const Tensor& queries, const KeyFeatures& keys, const Tensor& values,
                       LinearState& state);

}  // namespace qkv
