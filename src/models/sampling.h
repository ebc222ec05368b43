// Choosing a token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkv/generate.h"

namespace qkv {

// Divides positive and multiplies negative logits of tokens that occurred.
void penalize_repetition(std::span<float> logits, std::span<const std::int64_t> occurred,
                         double penalty);

// `draw` in [0, 1) decides where there is a choice. Ties go to the lower id.
std::int64_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          double draw);

// A logit less this is a log-probability.
double log_sum_exp(std::span<const float> logits);

// Uniform in [0, 1), a function of its arguments alone.
double sampling_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t step);

}  // namespace qkv
