// A run is taken up where it stopped, if it is the same run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/run_folder.h"

namespace qkv {

// A run as it begins, and what is to be filled.
struct ResumedRun {
  RunFolder& folder;
  Model& model;
  Optimizer& optimizer;
  const Dataset& data;
  const RunIdentity& identity;
  std::int64_t steps = 0;
  bool force = false;
  std::function<void(const std::string& note)> note{};
};

// From the newest checkpoint that is sound; absent where there is none at all. Those passed over
// are noted, with the reason, and so is what may change between; Error names what may not, unless
// `force`, and all checkpoints where none is sound: then `force` takes one whose checksums are
// wrong.
std::optional<RunState> resume_run(const ResumedRun& run);

}  // namespace qkv
