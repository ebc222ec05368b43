// The folder of a run: its config, metrics.jsonl, checkpoints, and the models that came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/data.h"
#include "qkv/models/model.h"
#include "qkv/optim.h"

namespace qkv {

// What a run is at the end of a step, besides weights and optimiser.
struct RunState {
  std::int64_t step = 0;
  DataPosition position{};
  double seconds = 0;  // of training so far
  // Since the last report: the loss summed over tokens, and their number.
  double loss = 0;
  std::int64_t tokens = 0;
  std::optional<double> best{};  // of what evaluations are compared by; larger is better
  std::int64_t best_step = 0;
  std::int64_t not_better = 0;  // evaluations since
  // max_logit of each head when it was last warned about.
  std::vector<double> warned{};
};

class RunFolder {
 public:
  // `resume` = false: Error when there is a run already. What a killed run left half made or half
  // removed goes.
  RunFolder(std::string path, bool resume);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const;

  // The newest checkpoint that is whole; absent when there is none.
  std::optional<std::string> newest() const;
  // A checkpoint is a folder that appears by one rename: it is whole or not there. Removes all but
  // the newest `keep`.
  void save(Model& model, const Optimizer& optimizer, const RunState& state, std::int64_t keep);
  // Fills weights and optimiser with what `checkpoint` has.
  static RunState load(const std::string& checkpoint, Model& model, Optimizer& optimizer);

  // A folder that load_model reads: the means of the weights where there are any, else the weights
  // before rounding; config and tokenizer with them. Replaces what was there in one rename.
  void save_model(const std::string& name, Model& model, const Optimizer& optimizer,
                  const std::string& tokenizer);

  void append_metrics(const std::string& line);
  // Forgets what was logged after `step`: it will be logged again.
  void cut_metrics(std::int64_t step);

 private:
  std::string path_;
};

}  // namespace qkv
