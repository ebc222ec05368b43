// A folder that appears, or is replaced, whole.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace qkv {

// How names change; tests put file systems in their place that refuse, or end, at any of these.
struct Renames {
  using Call = std::function<int(const char* from, const char* to)>;  // 0, or errno
  Call exchange;  // the two names; not every file system can
  Call rename;

  static Renames of_system();
};

// A new folder under a name that nothing looks at (".qkv-NAME.tmp"), until publish().
class DraftFolder {
 public:
  explicit DraftFolder(const std::filesystem::path& target, Renames renames = Renames::of_system());
  ~DraftFolder();
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  std::string path() const { return draft_.string(); }
  std::string file(const char* name) const { return (draft_ / name).string(); }
  // Once it is on the disk, it takes the name of the target. Readers of one that is replaced see
  // the old or the new one; where the file system cannot exchange names, for a moment neither, and
  // a process that is killed just then leaves the old one to recover_folder().
  void publish();

 private:
  void replace();

  std::filesystem::path target_, draft_;
  Renames renames_;
};

// Puts back what a killed publish() had moved aside, where there is nothing in its place.
void recover_folder(const std::filesystem::path& target);

// Removes a folder in such a way that what is left of it when the process is killed does not look
// like one. What cannot be removed stays.
void remove_folder(const std::filesystem::path& target);

// True of the names that drafts and folders being removed have, NAME being one of the target's.
bool is_draft_of(const std::string& file, const std::string& name);

}  // namespace qkv
