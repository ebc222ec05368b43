// The likeliest of some scores.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace qkv::cli {

struct Ranked {
  std::size_t index;
  double probability;
};

// Softmax over the logits, the `top` likeliest first.
std::vector<Ranked> rank_by_softmax(std::span<const float> logits, std::size_t top);

// Each by itself, 1 / (1 + e^-logit).
std::vector<Ranked> rank_by_sigmoid(std::span<const float> logits, std::size_t top);

}  // namespace qkv::cli
