#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <thread>

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurns = 10;
constexpr int kMinTurns = 3;        // for runs that take longer than a turn
constexpr double kMaxSeconds = 20;  // in all; then kMinTurns are enough

double run_once(const Contender& contender) {
  const auto start = Clock::now();
  contender.run();
  const auto end = Clock::now();
  contender.after();
  return std::chrono::duration<double, std::milli>(end - start).count();
}

double median_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double median_of_turn(const Timings& timings, std::size_t turn) {
  const auto runs = static_cast<std::size_t>(timings.runs_a_turn);
  return median_of(std::span(timings.milliseconds).subspan(turn * runs, runs));
}

}  // namespace

double Timings::median() const { return median_of(milliseconds); }

double Timings::fastest() const {
  return *std::min_element(milliseconds.begin(), milliseconds.end());
}

double Timings::times_as_long_as(const Timings& other) const {
  std::vector<double> ratios(milliseconds.size() / static_cast<std::size_t>(runs_a_turn));
  for (std::size_t turn = 0; turn < ratios.size(); ++turn) {
    ratios[turn] = median_of_turn(*this, turn) / median_of_turn(other, turn);
  }
  return median_of(ratios);
}

void take_turns(const std::vector<Contender*>& contenders, const TimingOptions& options) {
  double all = 0;
  for (Contender* contender : contenders) {
    run_once(*contender);  // the first touches memory for the first time
    const double once = std::min(run_once(*contender), run_once(*contender));
    // A rest comes with a run that is not timed, and counts as time.
    const double each = options.pause_ms > 0 ? options.pause_ms + 2 * once : once;
    all += each;
    const double wanted = options.repeat > 0 ? options.repeat : 1e3 * options.seconds / each;
    contender->timings.runs_a_turn = std::max(1, static_cast<int>(std::ceil(wanted / kTurns)));
  }
  int turns = options.repeat > 0 ? std::min(kTurns, options.repeat) : kTurns;
  if (options.repeat == 0 && all * 2 * kTurns > 1e3 * kMaxSeconds) turns = kMinTurns;
  for (int turn = 0; turn < turns; ++turn) {
    for (Contender* contender : contenders) {
      run_once(*contender);  // back into caches and branch predictors
      for (int run = 0; run < contender->timings.runs_a_turn; ++run) {
        if (options.pause_ms > 0) {
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options.pause_ms));
          run_once(*contender);
        }
        contender->timings.milliseconds.push_back(run_once(*contender));
      }
    }
    options.progress(turn + 1, turns);
  }
}

}  // namespace qkv::cli
