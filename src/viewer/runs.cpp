#include "viewer/runs.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/check.h"
#include "io/shown.h"
#include "text/utf8.h"

namespace qkv::viewer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLine = 8 << 20;      // bytes; longer ones are passed over
constexpr std::size_t kMostPoints = 1 << 20;    // kept; then every other one is let go
constexpr std::size_t kMostDrawn = 1000;        // told of a curve
constexpr std::size_t kMostReports = 64;        // of health
constexpr std::size_t kMostEvaluations = 4096;  // and as many warnings
constexpr const char* kHealth[] = {"max_logit",  "variance",    "entropy",
                                   "saturation", "q_grad_norm", "k_grad_norm"};

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  const bool is_number = found != object.end() && found->is_number();
  return is_number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// {"name": {statistic: [per head]}} becomes rows of one table per statistic.
Json table_of(const Json& entries, double step) {
  std::vector<std::string> names;
  for (const Json& entry : entries) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) continue;
    const std::string name = text::repaired_utf8(entry["name"].get<std::string>());
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  Json report{{"step", step}, {"names", names}};
  for (const char* statistic : kHealth) {
    std::vector<std::vector<float>> rows(names.size());
    bool any = false;
    for (const Json& entry : entries) {
      if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) continue;
      const double value = number(entry, statistic), head = number(entry, "head");
      if (!(head >= 0 && head < 16384)) continue;
      const std::string name = text::repaired_utf8(entry["name"].get<std::string>());
      auto& row = rows[static_cast<std::size_t>(std::find(names.begin(), names.end(), name) -
                                                names.begin())];
      const auto at = static_cast<std::size_t>(head);
      if (row.size() <= at) row.resize(at + 1, std::numeric_limits<float>::quiet_NaN());
      row[at] = static_cast<float>(value);
      any = any || std::isfinite(value);
    }
    if (any) report[statistic] = rows;
  }
  return report;
}

template <class T>
void let_every_other_go(std::vector<T>& list) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < list.size(); i += 2) list[kept++] = std::move(list[i]);
  list.resize(kept);
}

}  // namespace

void RunLog::update(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return;
  const auto size = static_cast<std::uint64_t>(about.st_size);
  const std::uint64_t file_id = about.st_ino;
  if (size < offset_ || file_id != file_id_) *this = {};  // begun again, or cut and written anew
  file_id_ = file_id;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_));
  std::vector<char> buffer(1 << 16);
  while (file && offset_ < size) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto count = static_cast<std::size_t>(file.gcount());
    if (count == 0) break;
    offset_ += count;
    for (std::size_t i = 0; i < count; ++i) {
      if (buffer[i] == '\n') {
        if (!skipping_) take(rest_);
        rest_.clear();
        skipping_ = false;
      } else if (!skipping_) {
        rest_ += buffer[i];
        skipping_ = rest_.size() > kMostLine;
      }
    }
  }
}

// A run that was killed goes on from its last checkpoint: what it had written after that is void.
void RunLog::forget_from(double step) {
  const auto is_void = [step](const Json& entry) { return number(entry, "step") >= step; };
  std::erase_if(points_, [step](const Point& point) { return point.step >= step; });
  for (std::vector<Json>* list : {&evaluations_, &health_, &warnings_}) {
    std::erase_if(*list, is_void);
  }
}

void RunLog::take(const std::string& line) {
  const Json entry = Json::parse(line, nullptr, false);
  const double step = entry.is_object() ? number(entry, "step") : -1;
  if (!(step >= 0)) {
    unreadable_ += line.empty() ? 0 : 1;
    return;
  }
  // An evaluation may have a line of its own, with the step it came after.
  const bool is_step = entry.contains("loss");
  const bool again = is_step && !points_.empty() && step <= points_.back().step;
  if (again || step < last_step_) forget_from(step);
  last_step_ = step;
  if (is_step) {
    points_.push_back({step, number(entry, "loss"), number(entry, "lr"),
                       number(entry, "tokens_per_second"), number(entry, "seconds")});
  }
  if (points_.size() > kMostPoints) let_every_other_go(points_);
  if (entry.contains("eval") && entry["eval"].is_object()) {
    Json evaluation{{"step", step}};
    for (const char* key : {"loss", "perplexity", "accuracy", "bleu"}) {
      const double value = number(entry["eval"], key);
      if (std::isfinite(value)) evaluation[key] = value;
    }
    evaluations_.push_back(std::move(evaluation));
    if (evaluations_.size() > kMostEvaluations) let_every_other_go(evaluations_);
  }
  if (entry.contains("warning") && entry["warning"].is_string()) {
    warnings_.push_back(
        {{"step", step}, {"text", text::repaired_utf8(entry["warning"].get<std::string>())}});
    if (warnings_.size() > kMostEvaluations) warnings_.erase(warnings_.begin());
  }
  if (entry.contains("health") && entry["health"].is_array() && !entry["health"].empty()) {
    if (health_seen_++ % health_stride_ == 0) health_.push_back(table_of(entry["health"], step));
    if (health_.size() > kMostReports) {
      let_every_other_go(health_);
      health_stride_ *= 2;
    }
  }
}

Json RunLog::to_json() const {
  const std::size_t each = std::max<std::size_t>(1, (points_.size() + kMostDrawn - 1) / kMostDrawn);
  std::vector<double> step, loss, lr, speed, seconds;
  for (std::size_t first = 0; first < points_.size(); first += each) {
    const std::size_t last = std::min(points_.size(), first + each);
    Point sum{};
    for (std::size_t i = first; i < last; ++i) {
      sum.loss += points_[i].loss;
      sum.tokens_per_second += points_[i].tokens_per_second;
    }
    const auto count = static_cast<double>(last - first);
    step.push_back(points_[last - 1].step);
    loss.push_back(sum.loss / count);
    lr.push_back(points_[last - 1].lr);
    speed.push_back(sum.tokens_per_second / count);
    seconds.push_back(points_[last - 1].seconds);
  }
  return {{"points",
           {{"step", step},
            {"loss", loss},
            {"lr", lr},
            {"tokens_per_second", speed},
            {"seconds", seconds}}},
          {"averaged", each},
          {"evaluations", evaluations_},
          {"health", health_},
          {"warnings", warnings_},
          {"unreadable", unreadable_}};
}

std::vector<std::string> RunFolder::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code none;
    if (fs::is_regular_file(at->path() / "metrics.jsonl", none)) {
      names.push_back(at->path().filename().string());
    }
  }
  check(!error, "{}: {}", shown_name(folder_), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

Json RunFolder::list() {
  const std::scoped_lock lock(mutex_);
  Json runs = Json::array();
  for (const std::string& name : names()) {
    const fs::path path = fs::path(folder_) / name / "metrics.jsonl";
    RunLog& log = logs_[name];
    log.update(path.string());
    const Json all = log.to_json();
    Json one{{"name", text::repaired_utf8(name)}, {"warnings", all["warnings"].size()}};
    const Json &steps = all["points"]["step"], &losses = all["points"]["loss"];
    if (!steps.empty()) {
      one["step"] = steps.back();
      one["loss"] = losses.back();
    }
    std::error_code error;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(path, error);
    one["idle_seconds"] = std::chrono::duration_cast<std::chrono::seconds>(age).count();
    runs.push_back(std::move(one));
  }
  return {{"runs", std::move(runs)}};
}

Json RunFolder::read(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  const std::vector<std::string> known = names();
  check(std::find(known.begin(), known.end(), name) != known.end(),
        "there is no run '{}' with a metrics.jsonl", shown_name(name));
  RunLog& log = logs_[name];
  log.update((fs::path(folder_) / name / "metrics.jsonl").string());
  Json json = log.to_json();
  json["name"] = name;
  return json;
}

}  // namespace qkv::viewer
