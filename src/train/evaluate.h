// How good the model of a run is: loss, accuracy, BLEU, and what it says to a few texts.
#pragma once

#include <vector>

#include "qkv/train.h"

namespace qkv {

// The weights to judge by: while it lives, parameters hold their running means where the optimiser
// keeps them.
class MeanWeights {
 public:
  explicit MeanWeights(const Optimizer& optimizer);
  ~MeanWeights();
  MeanWeights(const MeanWeights&) = delete;
  MeanWeights& operator=(const MeanWeights&) = delete;

 private:
  std::vector<Tensor> parameters_, kept_;
};

struct Judged {
  const Model& model;
  const Tokenizer& tokenizer;
  const Dataset* valid;  // null: samples only
};
Evaluation evaluate(const Judged& judged, const TrainConfig& config);

// What evaluations are compared by, larger being better.
double merit(const Evaluation& evaluation);

}  // namespace qkv
