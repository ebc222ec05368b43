// How an optimiser (optim.h) turns a gradient into a step.
#pragma once

#include <cstdint>
#include <string>

namespace qkv {

enum class OptimizerRule : std::uint8_t {
  adamw,  // Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW
  lion,   // the sign of a running mean (Chen et al. 2023)
  sgd,    // with momentum, as torch.optim.SGD but for the decay, which is decoupled here too
};

std::string to_string(OptimizerRule rule);                          // "adamw", "lion", "sgd"
OptimizerRule optimizer_rule_from_string(const std::string& name);  // Error on others

}  // namespace qkv
