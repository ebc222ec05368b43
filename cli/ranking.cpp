#include "ranking.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "models/sampling.h"

namespace qkv::cli {
namespace {

constexpr const char kNoNumbers[] =
    "the logits are not numbers (NaN or infinity); the model or its input is broken";

std::vector<Ranked> best_of(std::vector<Ranked> all, std::size_t top) {
  top = std::min(top, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(top), all.end(),
                    [](const Ranked& a, const Ranked& b) {
                      return a.probability != b.probability ? a.probability > b.probability
                                                            : a.index < b.index;
                    });
  all.resize(top);
  return all;
}

}  // namespace

std::vector<Ranked> rank_by_softmax(std::span<const float> logits, std::size_t top) {
  check(are_numbers(logits), kNoNumbers);
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<Ranked> all;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    all.push_back({i, std::exp(logits[i] - largest) / sum});
  }
  return best_of(std::move(all), top);
}

std::vector<Ranked> rank_by_sigmoid(std::span<const float> logits, std::size_t top) {
  check(are_numbers(logits), kNoNumbers);
  std::vector<Ranked> all;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    all.push_back({i, 1 / (1 + std::exp(-double{logits[i]}))});
  }
  return best_of(std::move(all), top);
}

}  // namespace qkv::cli
