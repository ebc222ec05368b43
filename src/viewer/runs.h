// A folder of training runs, each a folder with a metrics.jsonl.
//
// Nothing outside of the folder is read: links are not followed, and what is no regular file is not
// waited for. A run that cannot be read says so in its own place and hides none of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "viewer/picture_values.h"
#include "viewer/run_log.h"

namespace qkv::viewer {

inline constexpr std::size_t kMostRuns = 1024;  // folders that are looked at: the last by name

// Called from several threads.
class RunFolder {
 public:
  explicit RunFolder(std::string folder) : folder_(std::move(folder)) {}
  // Names, last steps and losses: of each run the end of its file, where that has changed.
  Json list();
  // Reads what was appended since the last time. Nothing where the folder holds no such run; Error
  // where it cannot be read, or the name is none: a name is a name, never a path.
  std::optional<Json> read(const std::string& name);

 private:
  struct Names {
    std::vector<std::string> names;  // sorted
    std::size_t left_out = 0;
  };
  // What a file looked like, and what its end said then.
  struct Glance {
    std::uint64_t file_id = 0, device = 0, size = 0;
    std::int64_t modified = 0;  // nanoseconds
    double step = -1, loss = 0;
  };
  struct Kept {
    RunLog log;
    std::uint64_t used = 0;
  };

  Names names() const;
  std::optional<Json> entry(int folder, const std::string& name);
  RunLog& log_of(const std::string& name);

  std::string folder_;
  std::mutex mutex_;
  std::map<std::string, Glance> glances_;
  std::map<std::string, Kept> logs_;
  std::uint64_t uses_ = 0;
};

}  // namespace qkv::viewer
