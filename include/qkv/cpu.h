// Which instruction set the CPU kernels use: the best the machine has, unless told otherwise.
#pragma once

#include <string>
#include <vector>

#include "qkv/dtype.h"

namespace qkv {

// The targets this build has and this machine can run, best first: "amx", "avx512_bf16",
// "avx512", "avx2", "sse4" on x86-64; "neon_bf16", "neon" on Arm; "baseline",
// what every machine of the architecture has (SSE2, NEON), on both.
std::vector<std::string> cpu_targets();
// The one in use: the first of cpu_targets(), or the one named by QKV_CPU_TARGET. Throws Error, as
// every operator, when that names none of them.
std::string cpu_target();
// Throws Error listing cpu_targets() when `name` is not among them. For tests and measurements;
// call it while no operator runs.
void set_cpu_target(const std::string& name);

// The multiply-adds this machine can do per second with num_threads() threads, in GFLOP/s:
// measured now (a fraction of a second) by a loop that stays in registers, with the
// instruction that cpu_target() has for `dtype`. No kernel can be faster; benchmarks report their
// share of it. Throws Error when `dtype` is not floating point.
double cpu_peak_gflops(DType dtype);

}  // namespace qkv
