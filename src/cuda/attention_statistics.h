#pragma once

#include "qkv/attention.h"

namespace qkv::cuda {

// Whether anything is asked that the scores of a row tell: all but `received`.
inline bool watches_scores(const AttentionStatistics& s) {
  return s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
         s.saturation.defined();
}

}  // namespace qkv::cuda
