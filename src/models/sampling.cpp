#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/sampling.h"
#include "qkv/random.h"

namespace qkv {

SampleOptions sample_options(const GenerateOptions& o) {
  return {.temperature = o.temperature,
          .top_k = o.top_k,
          .top_p = o.top_p,
          .min_p = o.min_p,
          .repetition_penalty = o.repetition_penalty};
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
