// Numbers and verdicts in words, for all studies.
#pragma once

#include <string>
#include <vector>

#include "qkv/study.h"

namespace qkv::study {

// Four significant digits: 16.03, 0.001953, 1024.
std::string digits(double value, int significant = 4);
// "12.3 times larger", "2.5 times smaller"
std::string compare(double a, double b);
const char* name_of(Finding::Verdict verdict);                    // in JSON
std::string findings_text(const std::vector<Finding>& findings);  // for a terminal, 100 columns

}  // namespace qkv::study
