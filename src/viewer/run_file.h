// The metrics.jsonl of a run, opened without leaving the folder of runs.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>

#include "io/descriptor.h"
#include "viewer/run_line.h"

namespace qkv::viewer {

// A descriptor; Error where it cannot be opened.
int open_folder_of_runs(const std::string& path);

class RunFile {
 public:
  // Nothing where `name` in the folder is no folder with a metrics.jsonl. Error where either is a
  // link, the latter is no regular file, or it cannot be opened.
  RunFile(int folder, const std::string& name);

  explicit operator bool() const { return file_.number >= 0; }
  int number() const { return file_.number; }
  const struct stat& about() const { return about_; }

 private:
  Descriptor file_;
  struct stat about_ {};
};

// Fewer bytes than asked for where the file ends. `name` is for messages.
std::size_t read_at(int file, char* to, std::size_t count, std::uint64_t at,
                    const std::string& name);

// The last line with a loss: only the end of the file is read. Nothing where there is none in the
// last 16 MB. `name` is that of the run.
std::optional<RunPoint> last_point(int file, std::uint64_t size, const std::string& name);

}  // namespace qkv::viewer
