#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/check.h"
#include "core/sampling.h"
#include "qkv/random.h"

namespace qkv {

bool are_numbers(std::span<const float> logits) {
  std::uint32_t largest = 0;
  for (const float logit : logits)
    largest = std::max(largest, rank_of(logit));  // NaN's is above all
  return is_finite_rank(largest);
}

void fail_of_logits(std::size_t sequence, std::int64_t given) {
  fail(
      "generate: the logits of sequence {} are not numbers where its token {} is chosen (NaN or "
      "infinity); the model or its input is broken",
      sequence, given);
}

void fail_of_no_token(std::size_t sequence, std::int64_t given) {
  fail(
      "generate: sequence {} may not go on with any token as its token {}: all are forbidden by "
      "no_repeat_ngram_size, bad_words_ids, suppress_tokens or the least number of tokens",
      sequence, given);
}

void penalize_repetition(std::span<float> logits, std::span<const std::int64_t> occurred,
                         double penalty) {
  if (penalty == 1) return;
  const std::unordered_set<std::int64_t> once(occurred.begin(), occurred.end());
  for (const std::int64_t id : once) {
    if (id < 0 || id >= static_cast<std::int64_t>(logits.size())) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = penalized(logit, static_cast<float>(penalty));
  }
}

double log_sum_exp(std::span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  return best + std::log(sum);
}

std::int64_t sampling_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t step) {
  const auto words =
      philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
              static_cast<std::uint32_t>(sequence), 2},
             seed);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return static_cast<std::int64_t>(bits & ((std::uint64_t{1} << kDrawBits) - 1));
}

}  // namespace qkv
