// The folder of a run: its config, metrics.jsonl, checkpoints, and the models that came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/draft_folder.h"
#include "io/file_lock.h"
#include "qkv/models/model.h"
#include "qkv/optim.h"
#include "qkv/tokenizer.h"
#include "train/run_state.h"

namespace qkv {

class RunFolder {
 public:
  // Locks it: Error when another process trains there. `resume` = false: Error when there is a run
  // already. What a killed run left half made or half removed goes, under the names that it has;
  // nothing else in the folder is touched, here or later.
  RunFolder(std::string path, bool resume, Renames renames = Renames::of_system());

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const;
  const FileLock& lock() const { return lock_; }

  // Folders called "checkpoint-" and nine digits, the newest first.
  std::vector<std::string> checkpoints() const;
  // The last that was loaded or saved.
  const std::optional<std::string>& last_good() const { return last_good_; }

  // A checkpoint is a folder that appears by one rename: it is whole or not there. Then removes
  // those that were passed over, and of the others all but the newest `keep`. Error names a
  // parameter that is not finite, and nothing is written.
  void save(Model& model, const Optimizer& optimizer, const RunState& state, std::int64_t keep);
  // Fills weights and optimiser with what `checkpoint` has; Error where it does not fit or is not
  // finite. Then it is the last good one.
  void load(const std::string& checkpoint, Model& model, Optimizer& optimizer);
  // `checkpoint` was found to be no good: it does not count for `keep`.
  void pass_over(const std::string& checkpoint) { passed_over_.push_back(checkpoint); }

  // A folder that load_model reads: the means of the weights where there are any, else the weights
  // before rounding; config and tokenizer with them. Replaces what was there.
  void save_model(const std::string& name, Model& model, const Optimizer& optimizer,
                  const Tokenizer& tokenizer);

  void append_metrics(const std::string& line);
  // Forgets what was logged after `step`: it will be logged again.
  void cut_metrics(std::int64_t step);

 private:
  void remove_unfinished();
  void prune(std::int64_t keep);

  std::string path_;
  Renames renames_;
  FileLock lock_;
  std::optional<std::string> last_good_;
  std::vector<std::string> passed_over_;
};

// The step of "checkpoint-000000012"; absent where the name is any other.
std::optional<std::int64_t> checkpoint_step(const std::string& name);
inline constexpr std::int64_t kMostSteps = 999'999'999;  // that fit into the name

}  // namespace qkv
