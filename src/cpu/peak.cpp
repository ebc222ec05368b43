#include "cpu/peak.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/threads.h"
#include "qkv/cpu.h"
#include "qkv/threads.h"

namespace qkv {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to hide starting the threads (some microseconds), short enough that some runs are not
// interrupted (a thread that was finds its caches cold and its core slower).
constexpr double kRunSeconds = 1e-3;
constexpr int kRuns = 120;
constexpr auto kMaxTime = std::chrono::milliseconds(500);  // on a busy machine

// The time this thread has been running: waiting for a core does not count, so that a busy machine
// shows the same peak as an idle one.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Span {
  Clock::time_point start, end;
  double seconds = 0;  // of the thread
};

// One share of the work for each thread.
std::vector<Span> run_all(const cpu::PeakLoop& loop, std::int64_t rounds, int threads) {
  std::vector<Span> spans(static_cast<std::size_t>(threads));
  parallel_for(threads, [&](std::int64_t i) {
    Span& span = spans[static_cast<std::size_t>(i)];
    span.start = Clock::now();
    const double before = thread_seconds();
    loop.work(rounds);
    span.seconds = std::max(thread_seconds() - before, 1e-9);
    span.end = Clock::now();
  });
  return spans;
}

// Whether all threads worked at the same time, as they share power and perhaps cores: one that
// worked alone may have been faster.
bool together(const std::vector<Span>& spans) {
  const auto by_start = [](const Span& a, const Span& b) { return a.start < b.start; };
  const auto by_end = [](const Span& a, const Span& b) { return a.end < b.end; };
  return std::max_element(spans.begin(), spans.end(), by_start)->start <
         std::min_element(spans.begin(), spans.end(), by_end)->end;
}

// Each thread's fastest share, added up: hardly any run has all threads undisturbed at once.
double best_gflops(const cpu::PeakLoop& loop) {
  const int threads = num_threads();
  std::int64_t rounds = 1024;
  while (run_all(loop, rounds, 1).front().seconds < kRunSeconds) rounds *= 2;
  std::vector<double> best(static_cast<std::size_t>(threads), 0), any = best;
  const auto raise = [](std::vector<double>& rates, const std::vector<Span>& spans) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      rates[i] = std::max(rates[i], 1 / spans[i].seconds);
    }
  };
  const auto start = Clock::now();
  for (int good = 0; good < kRuns && Clock::now() - start < kMaxTime;) {
    const std::vector<Span> spans = run_all(loop, rounds, threads);
    raise(any, spans);
    if (!together(spans)) continue;
    raise(best, spans);
    ++good;
  }
  if (best.front() == 0) best = any;
  const double rate = std::accumulate(best.begin(), best.end(), 0.0);
  // More threads than cores take turns; a share that was not interrupted says nothing about those
  // that waited.
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  return rate * static_cast<double>(rounds) * loop.flops_per_round *
         std::min(1.0, cores / threads) * 1e-9;
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
