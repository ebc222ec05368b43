// How far a long job is, on standard error: a bar with rate and time left on a terminal, a few
// plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace qkv::cli {

std::string time_text(double seconds);  // "2 min 5 s"
std::string bar_text(std::int64_t done, std::int64_t total);

class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int done, int total);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  int tenths_ = 0;  // done when the last line was printed, where there is no terminal
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

}  // namespace qkv::cli
