#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "output.h"

namespace qkv::cli {
namespace {

constexpr int kBar = 30;  // columns
constexpr auto kRedraw = std::chrono::milliseconds(80);
constexpr auto kLines = std::chrono::seconds(1);
constexpr const char* kClearLine = "\r\x1b[K";

std::string rate_text(double rate) {
  return rate < 10 ? fmt::format("{:.1f}/s", rate) : fmt::format("{:.0f}/s", rate);
}

}  // namespace

std::string time_text(double seconds) {
  const long whole = std::lround(seconds);
  return whole < 60 ? fmt::format("{} s", whole)
                    : fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string bar_text(std::int64_t done, std::int64_t total) {
  const std::int64_t filled = kBar * std::min(done, total) / total;
  std::string bar;
  for (int i = 0; i < kBar; ++i) bar += i < filled ? "█" : "░";
  return bar;
}

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
  const std::string pace = fmt::format("{}, {} left", rate_text(rate), time_text(left));
  if (!terminal_) {
    const int tenths = static_cast<int>(std::int64_t{10} * done / total);
    if (tenths == tenths_ || now - last_ < kLines) return;
    tenths_ = tenths;
    last_ = now;
    print_err("{}: {} of {}, {}\n", label_, done, total, pace);
    return;
  }
  // What is over before it could be read is not drawn at all.
  const bool is_last = drawn_ && done == total;
  if (!is_last && now - last_ < kRedraw) return;
  last_ = now;
  drawn_ = true;
  std::fputs(kClearLine, stderr);
  print_err("{} {} {}/{}  {}", label_, bar_text(done, total), done, total, pace);
}

}  // namespace qkv::cli
