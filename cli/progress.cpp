#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace qkv::cli {
namespace {

constexpr int kBar = 30;  // columns
constexpr auto kRedraw = std::chrono::milliseconds(80);
constexpr auto kLines = std::chrono::seconds(1);
constexpr const char* kClearLine = "\r\x1b[K";

std::string time_text(double seconds) {
  const long whole = std::lround(seconds);
  return whole < 60 ? fmt::format("{} s", whole)
                    : fmt::format("{} min {} s", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputs(kClearLine, stderr);
}

void Progress::update(int done, int total) {
  if (total <= 0) return;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? done / seconds : 0;
  const double left = rate > 0 ? (total - done) / rate : 0;
  if (!terminal_) {
    const int tenths = 10 * done / total;
    if (tenths == tenths_ || now - last_ < kLines) return;
    tenths_ = tenths;
    last_ = now;
    fmt::print(stderr, "{}: {} of {}, {} left\n", label_, done, total, time_text(left));
    return;
  }
  if (done < total && now - last_ < kRedraw) return;
  last_ = now;
  drawn_ = true;
  const int filled = kBar * std::min(done, total) / total;
  std::string bar;
  for (int i = 0; i < kBar; ++i) bar += i < filled ? "█" : "░";
  fmt::print(stderr, "{}{} {} {}/{}  {:.1f}/s  {} left", kClearLine, label_, bar, done, total, rate,
             time_text(left));
  std::fflush(stderr);
}

}  // namespace qkv::cli
