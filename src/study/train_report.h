// What the text, JSON and HTML of the training study share.
#pragma once

#include <string>

#include "qkv/study.h"

namespace qkv::study {

// "associative recall of 8 pairs, 2 layers of 1 head, d_k = 64, 90432 parameters, ..."
std::string describe(const TrainStudy& study);

}  // namespace qkv::study
