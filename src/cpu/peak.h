// Loops of multiply-adds that never leave the registers: what the machine can do at most.
#pragma once

#include <cstdint>

namespace qkv::cpu {

// `work` runs `rounds` rounds of a loop that does `flops_per_round` operations.
struct PeakLoop {
  void (*work)(std::int64_t rounds) = nullptr;
  double flops_per_round = 0;
};

// f32, with the vectors of the Highway target in use.
PeakLoop peak_loop_f32();
// bf16, by the instruction the named target multiplies with; no `work` where it has none.
PeakLoop peak_loop_bf16(const char* target);

}  // namespace qkv::cpu
