// What generation asks of logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "qkv/generate.h"

namespace qkv {

// Whether a token can be chosen by them: none is NaN, and the largest is finite.
bool are_numbers(std::span<const float> logits);
// Errors that name the prompt of the caller and which of its new tokens could not be chosen.
[[noreturn]] void fail_of_logits(std::size_t sequence, std::int64_t given);
[[noreturn]] void fail_of_no_token(std::size_t sequence, std::int64_t given);

// Divides positive and multiplies negative logits of tokens that occurred.
void penalize_repetition(std::span<float> logits, std::span<const std::int64_t> occurred,
                         double penalty);

// A logit less this is a log-probability.
double log_sum_exp(std::span<const float> logits);

// What decides a choice: from 0 to 2^53 - 1, a function of its arguments alone.
std::int64_t sampling_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t step);

}  // namespace qkv
