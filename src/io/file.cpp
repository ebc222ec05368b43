#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <new>
#include <utility>

#include "io/descriptor.h"
#include "io/file_kind.h"

namespace qkv {
namespace {

// Removes what it names unless told that all went well.
struct Temporary {
  std::string path;
  bool keep = false;

  ~Temporary() {
    if (!keep) ::unlink(path.c_str());
  }
};

// A symbolic link stays one: what it points at is replaced, in that file's folder.
std::string target_of(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path link(path);
  if (!std::filesystem::is_symlink(link, ignored)) return path;
  const auto target = std::filesystem::canonical(link, ignored);
  return ignored ? path : target.string();
}

// A new name in the same folder, so that the rename does not leave the file system. It does not
// grow with the name it replaces, which may be as long as names can be.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> count{0};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return (folder / fmt::format("{}{}-{}.tmp", kUnfinished, ::getpid(), count.fetch_add(1)))
      .string();
}

// A file that was not there, and its name. One that is (of another container with our process
// number, or left by a process that was killed) is somebody else's: the next name.
int create_temporary(const std::string& target, std::string& name) {
  constexpr int kAttempts = 1000;
  for (int attempt = 1;; ++attempt) {
    name = temporary_name(target);
    const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST || attempt == kAttempts) return file;
  }
}

void write_all(int file, const std::byte* bytes, std::size_t count, const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // Linux takes less than 2 GiB at a time
  while (count > 0) {
    const ssize_t written = ::write(file, bytes, std::min(count, kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno("cannot write", path);
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

// The rename itself reaches the disk with its folder. Some file systems cannot do this to a
// folder; the file is then whole all the same, so a refusal is no failure.
void sync_folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  const Descriptor opened(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.number >= 0) ::fsync(opened.number);
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t most) try {
  // O_NONBLOCK: a named pipe is refused below instead of waiting for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number < 0) fail_with_errno("cannot open", path);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail_with_errno("cannot read", path);
  check(S_ISREG(status.st_mode), "cannot read '{}': not a regular file", path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  check(size <= most, "cannot read '{}': {} bytes, at most {} are expected", path, size, most);

  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.number, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno("cannot read", path);
    if (got == 0) break;  // shortened meanwhile
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  // Never what was meant, whatever is read: as a text or a vocabulary it would even pass.
  check(!is_lfs_pointer(bytes), "cannot read '{}': {}", path, file_kind(bytes));
  return bytes;
} catch (const std::bad_alloc&) {
  fail<OutOfMemory>("cannot read '{}': out of memory", path);
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, [bytes](const FileSink& sink) {
    sink(std::as_bytes(std::span(bytes.data(), bytes.size())));
  });
}

void write_file_atomically(const std::string& path,
                           const std::function<void(const FileSink&)>& content) {
  const std::string target = target_of(path);
  struct stat old {};
  const bool replaces = ::stat(target.c_str(), &old) == 0;
  // A rename would replace a device or a pipe by a file, which nobody means.
  check(!replaces || S_ISREG(old.st_mode), "cannot write '{}': not a regular file", path);

  std::string name;
  Descriptor file(create_temporary(target, name));
  if (file.number < 0) fail_with_errno("cannot write", path);
  Temporary temporary{name};
  if (replaces) static_cast<void>(::fchmod(file.number, old.st_mode & 07777));
  content([&](std::span<const std::byte> bytes) {
    write_all(file.number, bytes.data(), bytes.size(), path);
  });
  if (::fsync(file.number) != 0) fail_with_errno("cannot write", path);
  const int closed = ::close(std::exchange(file.number, -1));
  if (closed != 0 && errno != EINTR) fail_with_errno("cannot write", path);
  if (std::rename(temporary.path.c_str(), target.c_str()) != 0) {
    fail_with_errno("cannot write", path);
  }
  temporary.keep = true;
  sync_folder(target);
}

}  // namespace qkv
