// The config of a run as JSON, and what of it a run that is taken up must have in common with the
// one it was.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "qkv/train.h"

namespace qkv {

// Every key with its value and absolute paths; `out` is the folder the text lies in.
std::string config_text(const TrainConfig& config);

// Keys that make the steps what they are, "optimizer.lr" with "0.001"; no paths, since what lies
// there counts.
using ConfigValues = std::map<std::string, std::string>;
ConfigValues config_values(const TrainConfig& config);
// The same of any JSON object; empty where it is none.
ConfigValues json_values(const std::string& text);

// A run as far as its weights do not say it.
struct RunIdentity {
  struct File {
    std::string path, prefix;
    std::string tokens;  // Dataset::fingerprint
  };
  ConfigValues config{};
  std::string tokenizer{};  // its fingerprint
  std::vector<File> train{}, valid{};
};
RunIdentity identity_of(const TrainConfig& config, const Tokenizer& tokenizer, const Dataset& data,
                        const Dataset* valid);

// What a run was and is now.
struct RunChange {
  std::string text;                 // "optimizer.beta1 was 0.9, now 0.8"
  bool allowed = false;             // docs/training.md lists what is
  bool affects_evaluation = false;  // evaluations before and after it cannot be compared
};
std::vector<RunChange> changes_between(const RunIdentity& before, const RunIdentity& now);
// Of the models' config.json.
std::vector<RunChange> changes_of_model(const std::string& before, const std::string& now);

}  // namespace qkv
