// Attention as a layer calls it: with the dropout and the statistics of a training pass.
#pragma once

#include "qkv/nn.h"

namespace qkv::nn {

struct Attended {
  Tensor queries, keys, values;  // [B, heads, S, D]
};
struct AttendOptions {
  const char* kind = "self";                  // or "cross", "global": for names
  double dropout = 0;                         // of the weights, in training
  const ProjectedAttention* layer = nullptr;  // that calls
};
Tensor attend(const Attended& x, AttentionOptions options, const AttendOptions& how,
              const AttentionCall& call);

}  // namespace qkv::nn
