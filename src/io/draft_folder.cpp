#include "io/draft_folder.h"

#include <fcntl.h>

#include <cstdio>

#include "io/descriptor.h"
#include "io/file.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;

constexpr const char *kDraft = ".tmp", *kReplaced = ".replaced", *kRemoved = ".old";

fs::path unfinished(const fs::path& target, const char* end) {
  return target.parent_path() / (kUnfinished + target.filename().string() + end);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

int errno_of(int result) { return result == 0 ? 0 : errno; }

void sync_directory(const fs::path& folder) {
  const Descriptor opened(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.number >= 0) ::fsync(opened.number);
}

// What is called `folder`, by way of the name that says it goes.
void remove_named(const fs::path& folder, const fs::path& target) {
  if (!is_there(folder)) return;
  const fs::path removed = unfinished(target, kRemoved);
  std::error_code ignored;
  fs::remove_all(removed, ignored);
  fs::rename(folder, removed, ignored);
  fs::remove_all(removed, ignored);
}

}  // namespace

Renames Renames::of_system() {
  return {
      .exchange =
          [](const char* from, const char* to) {
            return errno_of(::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE));
          },
      .rename = [](const char* from, const char* to) { return errno_of(std::rename(from, to)); }};
}

DraftFolder::DraftFolder(const fs::path& target, Renames renames)
    : target_(target), draft_(unfinished(target, kDraft)), renames_(std::move(renames)) {
  std::error_code error;
  fs::remove_all(draft_, error);  // of one that failed
  fs::create_directories(draft_, error);
  check(!error, "{}: cannot be made a folder: {}", draft_.string(), error.message());
}

DraftFolder::~DraftFolder() {
  std::error_code ignored;
  fs::remove_all(draft_, ignored);
}

void DraftFolder::publish() {
  sync_directory(draft_);
  if (is_there(target_)) {
    replace();
  } else {
    errno = renames_.rename(draft_.c_str(), target_.c_str());
    if (errno != 0) fail_with_errno("cannot write", target_.string());
  }
  sync_directory(target_.parent_path());
}

void DraftFolder::replace() {
  std::error_code ignored;
  check(fs::is_directory(fs::status(target_, ignored)) || fs::is_symlink(target_, ignored),
        "cannot write '{}': a file is in the place of the folder", target_.string());
  // Where it works there is a folder at any moment, and the destructor removes the old one.
  if (renames_.exchange(draft_.c_str(), target_.c_str()) == 0) return;
  const fs::path aside = unfinished(target_, kReplaced);
  remove_named(aside, target_);
  errno = renames_.rename(target_.c_str(), aside.c_str());
  if (errno != 0) fail_with_errno("cannot write", target_.string());
  if (const int failed = renames_.rename(draft_.c_str(), target_.c_str()); failed != 0) {
    renames_.rename(aside.c_str(), target_.c_str());
    errno = failed;
    fail_with_errno("cannot write", target_.string());
  }
  sync_directory(target_.parent_path());  // the new name is on the disk before the old one goes
  remove_named(aside, target_);
}

void recover_folder(const fs::path& target) {
  const fs::path aside = unfinished(target, kReplaced);
  if (!is_there(aside)) return;
  if (is_there(target)) return remove_named(aside, target);
  std::error_code error;
  fs::rename(aside, target, error);
  check(!error, "{}: cannot be renamed to {}: {}", aside.string(), target.filename().string(),
        error.message());
}

void remove_folder(const fs::path& target) { remove_named(target, target); }

bool is_draft_of(const std::string& file, const std::string& name) {
  return file == kUnfinished + name + kDraft || file == kUnfinished + name + kRemoved;
}

}  // namespace qkv
