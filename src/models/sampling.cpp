#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "core/check.h"
#include "qkv/random.h"

namespace qkv {
namespace {

struct Candidate {
  float logit;
  std::int64_t id;
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace

void penalize_repetition(std::span<float> logits, std::span<const std::int64_t> occurred,
                         double penalty) {
  if (penalty == 1) return;
  const auto factor = static_cast<float>(penalty);
  const std::unordered_set<std::int64_t> once(occurred.begin(), occurred.end());
  for (const std::int64_t id : once) {
    if (id < 0 || id >= static_cast<std::int64_t>(logits.size())) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / factor : logit * factor;
  }
}

std::int64_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          double draw) {
  const auto best = std::max_element(logits.begin(), logits.end());
  check(best != logits.end() && !std::isnan(*best) && *best > -INFINITY,
        "generate: the logits are not numbers; the model or its input is broken");
  if (options.temperature == 0) return best - logits.begin();

  std::vector<Candidate> candidates;
  const auto floor = options.min_p > 0
                         ? static_cast<float>(*best + options.temperature * std::log(options.min_p))
                         : -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor) candidates.push_back({logits[i], static_cast<std::int64_t>(i)});
  }
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end(),
                     is_likelier);
    candidates.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> weights(candidates.size());
  const bool cuts = options.top_p < 1;
  if (cuts) std::sort(candidates.begin(), candidates.end(), is_likelier);
  double total = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    weights[i] = std::exp((double{candidates[i].logit} - *best) / options.temperature);
    total += weights[i];
  }
  if (cuts) {
    double reached = 0;
    std::size_t kept = 0;
    while (kept < weights.size() && (kept == 0 || reached < options.top_p * total)) {
      reached += weights[kept++];
    }
    candidates.resize(kept);
    total = reached;
  }
  double left = draw * total;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    left -= weights[i];
    if (left < 0) return candidates[i].id;
  }
  return candidates.back().id;
}

double log_sum_exp(std::span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  return best + std::log(sum);
}

double sampling_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t step) {
  const auto words =
      philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
              static_cast<std::uint32_t>(sequence), 2},
             seed);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
}

}  // namespace qkv
