#include "viewer/run_file.h"

#include <fcntl.h>

#include <algorithm>
#include <string_view>

#include "io/shown.h"
#include "viewer/run_log.h"

namespace qkv::viewer {
namespace {

constexpr std::uint64_t kFirstTail = 64 << 10, kLastTail = 2 * kLongestRunLine;
constexpr const char* kMetrics = "metrics.jsonl";

bool is_link(int folder, const char* name) {
  struct stat about {};
  return ::fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(about.st_mode);
}

// -1: there is none. `shown` stands for it in messages.
int open_beneath(int folder, const char* name, int flags, const std::string& shown) {
  // O_NONBLOCK: a named pipe is refused later instead of waiting for a writer.
  const int file = ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
  if (file >= 0) return file;
  const int code = errno;
  check(!is_link(folder, name), "'{}' is a symbolic link, and links are not followed", shown);
  if (code == ENOENT || code == ENOTDIR || code == ENAMETOOLONG) return -1;
  errno = code;
  fail_with_errno("cannot open", shown);
}

std::optional<RunPoint> last_point_in(std::string_view lines, const std::string& name) {
  // What stands behind the last line end is not complete.
  for (std::size_t end = lines.rfind('\n'); end != std::string_view::npos && end > 0;) {
    const std::size_t before = lines.rfind('\n', end - 1);
    if (before == std::string_view::npos) return std::nullopt;  // it may begin further up
    const std::string_view line = lines.substr(before + 1, end - before - 1);
    if (line.size() <= kLongestRunLine) {
      if (const RunLine read = read_run_line(line, name); read.point) return read.point;
    }
    end = before;
  }
  return std::nullopt;
}

int open_metrics(int folder, const std::string& name) {
  const std::string shown = shown_name(name);
  const Descriptor run(open_beneath(folder, name.c_str(), O_DIRECTORY, shown));
  return run.number < 0 ? -1 : open_beneath(run.number, kMetrics, 0, shown + "/" + kMetrics);
}

}  // namespace

int open_folder_of_runs(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail_with_errno("cannot open", shown_name(path));
  return folder;
}

RunFile::RunFile(int folder, const std::string& name) : file_(open_metrics(folder, name)) {
  if (file_.number < 0) return;
  if (::fstat(file_.number, &about_) != 0) fail_with_errno("cannot read", shown_name(name));
  check(S_ISREG(about_.st_mode), "'{}/{}' is not a regular file", shown_name(name), kMetrics);
}

std::size_t read_at(int file, char* to, std::size_t count, std::uint64_t at,
                    const std::string& name) {
  ssize_t got = -1;
  do got = ::pread(file, to, count, static_cast<off_t>(at));
  while (got < 0 && errno == EINTR);
  if (got < 0) fail_with_errno("cannot read", name);
  return static_cast<std::size_t>(got);
}

std::optional<RunPoint> last_point(int file, std::uint64_t size, const std::string& name) {
  for (std::uint64_t tail = kFirstTail;; tail *= 4) {
    tail = std::min(tail, kLastTail);
    const std::uint64_t first = size - std::min(size, tail);
    std::string lines(static_cast<std::size_t>(size - first) + 1, '\n');
    const std::size_t got = read_at(file, lines.data() + 1, lines.size() - 1, first, name);
    lines.resize(got + 1);
    if (first > 0) lines.erase(0, 1);  // the line end before the first line is not there
    std::optional<RunPoint> last = last_point_in(lines, shown_name(name));
    if (last || first == 0 || tail == kLastTail) return last;
  }
}

}  // namespace qkv::viewer
