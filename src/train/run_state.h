// What a checkpoint keeps besides tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/data.h"
#include "train/run_config.h"

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
  RunIdentity identity{};
};

// As JSON. A state of an earlier version has no identity, and no checksums beside it.
std::string state_text(const RunState& state);
struct ReadState {
  RunState state;
  bool has_checksums = false;
};
ReadState read_state(const std::string& path);

// The names of what is in a folder, in their order.
std::vector<std::string> names_in(const std::string& folder);

// The checksums of all files of a folder, in a file of its own that `xxh64sum -c` reads.
inline constexpr const char* kChecksums = "checksums.xxh64";
void write_checksums(const std::string& folder);
// Error names the first file that is not as it was written, or not there, and says how it differs.
// False where there are no checksums.
bool verify_checksums(const std::string& folder);

}  // namespace qkv
