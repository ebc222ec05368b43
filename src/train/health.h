// The health of the scores: what every head's attention told of them, rules that warn, and QK-clip.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "qkv/autograd.h"
#include "qkv/nn.h"
#include "qkv/train.h"

namespace qkv {

// What a pass has to ask of attention for ScoreHealth.
inline constexpr Statistics kHealthStatistics = Statistics::max_logit | Statistics::score_moments |
                                                Statistics::entropy | Statistics::saturation;

// A statistic [B, H] of an attention as an item of head_figures.
HeadFigures over_batch(const Tensor& statistic, HeadFigure figure);

// Keeps the gradients of queries and keys; between forward and backward.
void watch_scores(Tape& tape, const nn::Training& pass);

// What a pass told, over its batch. Made where the pass ran, and sets out to the CPU at once; to
// read it waits for that alone.
class ScoreHealth {
 public:
  ScoreHealth(const nn::Training& pass, const Gradients& gradients);
  // One entry per head, in the order the layers ran.
  std::vector<HeadHealth> read() const;

 private:
  struct Layer {
    std::string name;
    std::int64_t heads = 0, query_norms = 0, key_norms = 0;  // norms: 0 without a gradient
  };
  std::vector<Layer> layers_;
  std::unique_ptr<Reading> figures_;
};

// What the rules say. `warned` holds max_logit of each head when it was last warned about; empty at
// the beginning.
std::vector<std::string> warnings_of(const std::vector<HeadHealth>& health,
                                     const WatchOptions& watch, std::vector<double>& warned);

// QK-clip. The largest logits of a pass set out to the CPU at once, as in ScoreHealth.
class ScoreClip {
 public:
  explicit ScoreClip(const nn::Training& pass);
  // Scales W_Q and W_K of every head whose largest logit passes `limit`, and tells which.
  std::vector<std::string> apply(double limit, const Optimizer& optimizer) const;

 private:
  struct Layer {
    std::string name;
    const nn::ProjectedAttention* layer;
    std::int64_t heads;
  };
  std::vector<Layer> layers_;
  std::unique_ptr<Reading> largest_;
};

}  // namespace qkv
