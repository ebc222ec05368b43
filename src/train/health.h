// The health of the scores: what every head's attention told of them, rules that warn, and QK-clip.
#pragma once

#include <string>
#include <vector>

#include "qkv/autograd.h"
#include "qkv/nn.h"
#include "qkv/train.h"

namespace qkv {

// What a pass has to ask of attention for head_health.
inline constexpr Statistics kHealthStatistics = Statistics::max_logit | Statistics::score_moments |
                                                Statistics::entropy | Statistics::top_weight;

// Keeps the gradients of queries and keys; between forward and backward.
void watch_scores(Tape& tape, const nn::Training& pass);
// One entry per head, in the order the layers ran.
std::vector<HeadHealth> head_health(const nn::Training& pass, const Gradients& gradients);

// What the rules say. `warned` holds max_logit of each head when it was last warned about; empty at
// the beginning.
std::vector<std::string> warnings_of(const std::vector<HeadHealth>& health,
                                     const WatchOptions& watch, std::vector<double>& warned);

// QK-clip: scales W_Q and W_K of every head whose max_logit passes `limit`, and tells which.
std::vector<std::string> clip_scores(const nn::Training& pass, double limit,
                                     const Optimizer& optimizer);

}  // namespace qkv
