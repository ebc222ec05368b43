#include "viewer/runs.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "io/descriptor.h"
#include "io/shown.h"
#include "text/utf8.h"
#include "viewer/run_file.h"

namespace qkv::viewer {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostRead = 64 << 20;  // bytes of a run for one answer
constexpr std::size_t kMostLogs = 8;           // runs whose curves are kept

void check_run_name(const std::string& name) {
  check(!name.empty() && name != "." && name != ".." &&
            name.find_first_of(std::string("/\0", 2)) == std::string::npos &&
            text::is_valid_utf8(name),
        "'{}' is not the name of a run: that of a folder, not a path", shown_name(name));
}

std::int64_t nanoseconds(const struct timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::int64_t idle_seconds(const struct stat& about) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return std::max<std::int64_t>(0, seconds - about.st_mtim.tv_sec);
}

}  // namespace

RunFolder::Names RunFolder::names() const {
  std::set<std::string> last;
  Names found;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code none;
    if (!at->is_directory(none)) continue;
    last.insert(at->path().filename().string());
    if (last.size() > kMostRuns) {
      last.erase(last.begin());
      ++found.left_out;
    }
  }
  check(!error, "{}: {}", shown_name(folder_), error.message());
  found.names.assign(last.begin(), last.end());
  return found;
}

// Nothing: the folder is no run.
std::optional<Json> RunFolder::entry(int folder, const std::string& name) {
  Json one{{"name", text::repaired_utf8(name)}};
  try {
    const RunFile file(folder, name);
    if (!file) return std::nullopt;
    check(text::is_valid_utf8(name), "the name of its folder is not UTF-8; rename it");
    const struct stat& about = file.about();
    Glance& glance = glances_[name];
    const Glance now{about.st_ino, about.st_dev, static_cast<std::uint64_t>(about.st_size),
                     nanoseconds(about.st_mtim)};
    if (now.file_id != glance.file_id || now.device != glance.device || now.size != glance.size ||
        now.modified != glance.modified) {
      const std::optional<RunPoint> last = last_point(file.number(), now.size, name);
      glance = now;
      if (last) glance.step = last->step, glance.loss = last->loss;
    }
    if (glance.step >= 0) {
      one["step"] = run_number(glance.step);
      one["loss"] = run_number(glance.loss);
    }
    one["idle_seconds"] = idle_seconds(about);
  } catch (const Error& error) {
    glances_.erase(name);
    one["error"] = error.what();
  }
  return one;
}

Json RunFolder::list() {
  const std::scoped_lock lock(mutex_);
  const Descriptor folder(open_folder_of_runs(folder_));
  const Names known = names();
  std::erase_if(glances_, [&](const auto& glance) {
    return !std::binary_search(known.names.begin(), known.names.end(), glance.first);
  });
  Json runs = Json::array();
  for (const std::string& name : known.names) {
    if (std::optional<Json> one = entry(folder.number, name)) runs.push_back(std::move(*one));
  }
  return {{"runs", std::move(runs)}, {"left_out", known.left_out}};
}

RunLog& RunFolder::log_of(const std::string& name) {
  Kept& kept = logs_[name];
  kept.used = ++uses_;
  if (logs_.size() > kMostLogs) {
    logs_.erase(std::min_element(logs_.begin(), logs_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  return kept.log;
}

std::optional<Json> RunFolder::read(const std::string& name) {
  check_run_name(name);
  const std::scoped_lock lock(mutex_);
  const Descriptor folder(open_folder_of_runs(folder_));
  const RunFile file(folder.number, name);
  if (!file) return std::nullopt;
  RunLog& log = log_of(name);
  log.update(file.number(), shown_name(name) + "/metrics.jsonl", kMostRead);
  Json json = log.to_json();
  json["name"] = name;
  return json;
}

}  // namespace qkv::viewer
