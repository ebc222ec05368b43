#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <system_error>

#include "io/descriptor.h"
#include "io/shown.h"

namespace qkv {
namespace {

// The process number and the machine, as the holder wrote them.
std::string holder_of(int file) {
  std::array<char, 256> text;
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  if (got <= 0) return "another process";
  const std::string_view all(text.data(), static_cast<std::size_t>(got));
  return shown_name(all.substr(0, all.find('\n')));
}

void write_holder(int file) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::string text = fmt::format("process {} on {}\n", ::getpid(), host.data());
  // For messages alone: where it cannot be written, the lock holds all the same.
  if (::ftruncate(file, 0) != 0) return;
  static_cast<void>(!::pwrite(file, text.data(), text.size(), 0));
}

int try_flock(int file) {
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

FileLock::FileLock(const std::string& path, const std::string& what) {
  // No link is followed: what it points at is not ours to write. A pipe must not wait.
  Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file.number < 0) fail_with_errno("cannot open", path);
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail_with_errno("cannot read", path);
  check(S_ISREG(status.st_mode), "cannot lock '{}': not a regular file", path);
  const int failed = try_flock(file.number);
  check(failed != EWOULDBLOCK,
        "{} is in use by {}; wait for it to end, or stop it (the lock is {})", what,
        holder_of(file.number), path);
  if (failed != 0) {
    unsupported_ = std::generic_category().message(failed);
  } else {
    write_holder(file.number);
  }
  file_ = std::exchange(file.number, -1);
}

FileLock::~FileLock() { ::close(file_); }

}  // namespace qkv
