// The lines of metrics.jsonl.
#pragma once

#include <string>

#include "qkv/train.h"

namespace qkv {

std::string metrics_line(const StepReport& report);
std::string metrics_line(const Evaluation& evaluation);

}  // namespace qkv
