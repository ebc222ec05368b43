// Training runs as their metrics.jsonl tells them: one JSON object per line, written while we read.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "viewer/picture_values.h"

namespace qkv::viewer {

// One run. update() reads only what was appended since.
class RunLog {
 public:
  void update(const std::string& path);
  // Curves of at most a thousand points, evaluations, warnings, and some of the health reports.
  Json to_json() const;

 private:
  struct Point {
    double step, loss, lr, tokens_per_second, seconds;
  };
  void take(const std::string& line);
  void forget_from(double step);

  std::uint64_t offset_ = 0, file_id_ = 0;
  std::string rest_;       // a line that is not complete yet
  bool skipping_ = false;  // the rest of a line that is too long
  std::vector<Point> points_;
  std::vector<Json> evaluations_, health_, warnings_;
  std::uint64_t health_stride_ = 1, health_seen_ = 0;
  double last_step_ = -1;
  std::int64_t unreadable_ = 0;
};

// A folder of them, each a folder with a metrics.jsonl; called from several threads.
class RunFolder {
 public:
  explicit RunFolder(std::string folder) : folder_(std::move(folder)) {}
  Json list();
  // Error when the folder holds no such run; a name is a name, never a path.
  Json read(const std::string& name);

 private:
  std::vector<std::string> names() const;

  std::string folder_;
  std::mutex mutex_;
  std::map<std::string, RunLog> logs_;
};

}  // namespace qkv::viewer
