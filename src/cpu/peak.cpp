#include "cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/check.h"
#include "core/threads.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"

namespace qkv {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to hide starting the threads (some microseconds), short enough that some of the runs
// are not interrupted by anything else on the machine.
constexpr double kRunSeconds = 1e-3;
constexpr int kRuns = 120;

// From the first thread's start to the last one's end: a thread that came late, or took two
// shares, makes a slow run and not a wrong one.
double run_seconds(const cpu::PeakLoop& loop, std::int64_t rounds, int threads) {
  std::vector<Clock::time_point> starts(static_cast<std::size_t>(threads)), ends = starts;
  parallel_for(threads, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    starts[at] = Clock::now();
    loop.work(rounds);
    ends[at] = Clock::now();
  });
  const std::chrono::duration<double> time =
      *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
  return time.count();
}

double best_gflops(const cpu::PeakLoop& loop) {
  const int threads = num_threads();
  std::int64_t rounds = 1024;
  while (run_seconds(loop, rounds, threads) < kRunSeconds) rounds *= 2;
  double best = run_seconds(loop, rounds, threads);
  for (int run = 0; run < kRuns; ++run) best = std::min(best, run_seconds(loop, rounds, threads));
  return static_cast<double>(rounds) * loop.flops_per_round * threads / best * 1e-9;
}

}  // namespace

double cpu_peak_gflops(DType dtype) {
  check(is_floating(dtype), "cpu_peak_gflops: dtype must be floating point, got {}", dtype);
  const std::string target = cpu_target();
  const double f32 = best_gflops(cpu::peak_loop_f32());
  // f16 is widened to f32 and multiplied there. So may be bf16, and that is the better choice on
  // machines whose bf16 instruction is slower (VDPBF16PS on Sapphire Rapids: half of f32).
  const cpu::PeakLoop bf16 = cpu::peak_loop_bf16(target.c_str());
  if (dtype != DType::bf16 || bf16.work == nullptr) return f32;
  return std::max(f32, best_gflops(bf16));
}

}  // namespace qkv
