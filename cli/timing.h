// Timing several ways to compute the same thing, in turns, so that what else the machine does and
// how warm it is falls on all of them alike.
#pragma once

#include <functional>
#include <vector>

namespace qkv::cli {

struct Timings {
  std::vector<double> milliseconds{};  // one per timed run
  int runs_a_turn = 1;

  bool empty() const { return milliseconds.empty(); }
  double median() const;
  double fastest() const;
  // How many times as long as another takes that took turns with it: the median over turns, so that
  // a machine that slows down from one to the next slows both.
  double times_as_long_as(const Timings& other) const;
};

struct Contender {
  std::function<void()> run;            // timed
  std::function<void()> after = [] {};  // not timed: frees what the run before made
  Timings timings{};
};

struct TimingOptions {
  int repeat = 0;        // timed runs of each; 0 = as many as `seconds` need
  double seconds = 0.5;  // for each contender, at least: timed, or with the rests if it rests
  double pause_ms = 0;   // of rest before every timed run, and one that is not timed between
  std::function<void(int done, int total)> progress = [](int, int) {};
};

void take_turns(const std::vector<Contender*>& contenders, const TimingOptions& options);

}  // namespace qkv::cli
