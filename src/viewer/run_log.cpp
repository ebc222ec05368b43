#include "viewer/run_log.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "viewer/run_file.h"

namespace qkv::viewer {
namespace {

constexpr std::size_t kMostPoints = 1 << 18;
constexpr std::size_t kMostDrawn = 1000;        // points of a curve
constexpr std::size_t kMostReports = 64;        // of health
constexpr std::size_t kMostHealth = 4 << 20;    // bytes of them
constexpr std::size_t kMostEvaluations = 4096;  // and as many warnings
constexpr std::size_t kLastBytes = 256;

template <class T>
void keep_every_other(std::vector<T>& list) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < list.size(); i += 2) list[kept++] = std::move(list[i]);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(kept), list.end());
}

// What is at or behind a step stands at the end.
template <class List>
void drop_from(List& list, double step) {
  while (!list.empty() && list.back().step >= step) list.pop_back();
}

Json table_of(const RunHealth& health, const std::vector<float>& cells) {
  Json rows = Json::array();
  auto at = cells.begin();
  for (const std::uint32_t heads : health.heads) {
    const auto end = at + static_cast<std::ptrdiff_t>(heads);
    rows.push_back(std::vector<float>(at, end));
    at = end;
  }
  return rows;
}

Json json_of(const RunHealth& health) {
  Json report{{"step", run_number(health.step)}, {"names", health.names}};
  for (std::size_t s = 0; s < kHealthNames.size(); ++s) {
    if (!health.cells[s].empty()) report[kHealthNames[s]] = table_of(health, health.cells[s]);
  }
  return report;
}

Json json_of(const RunEvaluation& e) {
  Json evaluation{{"step", run_number(e.step)}};
  for (const auto& [key, value] : {std::pair{"loss", e.loss},
                                   {"perplexity", e.perplexity},
                                   {"accuracy", e.accuracy},
                                   {"bleu", e.bleu}}) {
    if (const Json number = run_number(value); !number.is_null()) evaluation[key] = number;
  }
  return evaluation;
}

// At most kMostDrawn of them, each the mean or the last of `each` points.
Json curves_of(const std::vector<RunPoint>& points, std::size_t each) {
  Json step = Json::array(), loss = step, lr = step, speed = step, seconds = step;
  for (std::size_t first = 0; first < points.size(); first += each) {
    const std::size_t last = std::min(points.size(), first + each);
    double losses = 0, speeds = 0;
    for (std::size_t i = first; i < last; ++i) {
      losses += points[i].loss;
      speeds += points[i].tokens_per_second;
    }
    const auto count = static_cast<double>(last - first);
    step.push_back(run_number(points[last - 1].step));
    loss.push_back(run_number(losses / count));
    lr.push_back(run_number(points[last - 1].lr));
    speed.push_back(run_number(speeds / count));
    seconds.push_back(run_number(points[last - 1].seconds));
  }
  return {{"step", std::move(step)},
          {"loss", std::move(loss)},
          {"lr", std::move(lr)},
          {"tokens_per_second", std::move(speed)},
          {"seconds", std::move(seconds)}};
}

}  // namespace

Json run_number(double value) {
  constexpr double kWhole = 9007199254740992;  // 2^53
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) return nullptr;
  if (std::abs(value) <= kWhole && value == std::floor(value)) {
    return static_cast<std::int64_t>(value);
  }
  return static_cast<float>(value);
}

bool RunLog::is_continued(int file, std::uint64_t size) const {
  if (size < offset_) return false;
  std::array<char, kLastBytes> now;
  const std::size_t count = last_bytes_.size();
  const std::size_t got = read_at(file, now.data(), count, offset_ - count, "metrics.jsonl");
  return std::string_view(now.data(), got) == last_bytes_;
}

void RunLog::update(int file, const std::string& name, std::uint64_t most) {
  struct stat about {};
  if (::fstat(file, &about) != 0) fail_with_errno("cannot read", name);
  const auto size = static_cast<std::uint64_t>(about.st_size);
  const bool is_same = about.st_ino == file_id_ && about.st_dev == device_;
  if (!is_same || !is_continued(file, size)) *this = {};  // begun again, or written anew
  file_id_ = about.st_ino;
  device_ = about.st_dev;
  size_ = size;
  const std::uint64_t end = std::min(size, offset_ + std::min(most, size));
  std::vector<char> buffer(1 << 16);
  while (offset_ < end) {
    const std::size_t wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), end - offset_));
    const std::size_t got = read_at(file, buffer.data(), wanted, offset_, name);
    if (got == 0) break;  // shortened meanwhile
    offset_ += got;
    const std::string_view bytes(buffer.data(), got);
    last_bytes_.append(bytes.substr(bytes.size() - std::min(bytes.size(), kLastBytes)));
    last_bytes_.erase(0, last_bytes_.size() - std::min(last_bytes_.size(), kLastBytes));
    take_bytes(bytes, name);
  }
}

void RunLog::take_bytes(std::string_view bytes, const std::string& name) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t line_end = bytes.find('\n', at);
    const std::string_view part = bytes.substr(at, line_end - at);
    if (!skipping_) rest_ += part;
    if (rest_.size() > kLongestRunLine) {
      skipping_ = true;
      std::string().swap(rest_);  // and its memory
    }
    if (line_end == std::string_view::npos) return;
    end_line(name);
    at = line_end + 1;
  }
}

void RunLog::end_line(const std::string& name) {
  ++lines_;
  if (skipping_) {
    complain(fmt::format("{} line {}: more than {} bytes", name, lines_, kLongestRunLine));
  } else if (!rest_.empty()) {
    take(read_run_line(rest_, fmt::format("{} line {}", name, lines_)));
  }
  if (rest_.size() > (1 << 16)) rest_.shrink_to_fit();
  rest_.clear();
  skipping_ = false;
}

void RunLog::complain(const std::string& problem) {
  if (unreadable_++ == 0) first_problem_ = problem;
}

// A run that was killed goes on from its last checkpoint: what it had written after that is void.
void RunLog::forget_from(double step) {
  drop_from(points_, step);
  drop_from(evaluations_, step);
  drop_from(warnings_, step);
  drop_from(health_, step);
}

void RunLog::take(RunLine line) {
  if (!line.problem.empty()) complain(line.problem);
  if (line.step < 0) return;
  // An evaluation may have a line of its own, with the step it came after.
  const bool again = line.point && !points_.empty() && line.step <= points_.back().step;
  if (again || line.step < last_step_) forget_from(line.step);
  last_step_ = line.step;
  if (line.point) points_.push_back(*line.point);
  if (points_.size() > kMostPoints) keep_every_other(points_);
  if (line.evaluation) evaluations_.push_back(*line.evaluation);
  if (evaluations_.size() > kMostEvaluations) keep_every_other(evaluations_);
  if (line.warning) warnings_.push_back(std::move(*line.warning));
  if (warnings_.size() > kMostEvaluations) warnings_.pop_front();
  if (line.health) take_health(std::move(*line.health));
}

void RunLog::take_health(RunHealth health) {
  if (health_seen_++ % health_stride_ != 0) return;
  health_.push_back(std::move(health));
  const auto bytes = [this] {
    std::size_t sum = 0;
    for (const RunHealth& report : health_) sum += report.bytes();
    return sum;
  };
  while (health_.size() > 1 && (health_.size() > kMostReports || bytes() > kMostHealth)) {
    keep_every_other(health_);
    health_stride_ *= 2;
  }
}

Json RunLog::to_json() const {
  const std::size_t each = std::max<std::size_t>(1, (points_.size() + kMostDrawn - 1) / kMostDrawn);
  Json evaluations = Json::array(), warnings = Json::array(), health = Json::array();
  for (const RunEvaluation& e : evaluations_) evaluations.push_back(json_of(e));
  for (const RunWarning& w : warnings_) {
    warnings.push_back({{"step", run_number(w.step)}, {"text", w.text}});
  }
  for (const RunHealth& report : health_) health.push_back(json_of(report));
  Json json{{"points", curves_of(points_, each)},        {"averaged", each},
            {"evaluations", std::move(evaluations)},     {"health", std::move(health)},
            {"warnings", std::move(warnings)},           {"unreadable", unreadable_},
            {"unread", size_ - std::min(size_, offset_)}};
  if (!first_problem_.empty()) json["first_unreadable"] = first_problem_;
  return json;
}

}  // namespace qkv::viewer
