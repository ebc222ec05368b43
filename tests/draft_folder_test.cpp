// Folders that appear whole: also where names cannot be exchanged, and where all ends half-way.
#include "io/draft_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <set>

#include "expect_error.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::TemporaryFolder;

// As NFS and some FUSE file systems answer. EINVAL, ENOSYS and ENOTSUP are all seen.
Renames without_exchange(int code = EINVAL) {
  Renames renames = Renames::of_system();
  renames.exchange = [code](const char*, const char*) { return code; };
  return renames;
}

void publish(const fs::path& target, const std::string& text, const Renames& renames) {
  DraftFolder draft(target, renames);
  std::ofstream(draft.file("text")) << text;
  draft.publish();
}

std::string published(const fs::path& target) {
  std::string text;
  std::getline(std::ifstream(target / "text"), text);
  return text;
}

std::set<std::string> names_of_folder(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(DraftFolder, ReplacesAFolderWithAndWithoutExchange) {
  for (const Renames& renames : {Renames::of_system(), without_exchange(EINVAL),
                                 without_exchange(ENOSYS), without_exchange(ENOTSUP)}) {
    const TemporaryFolder folder;
    const fs::path target = folder.path("best");
    for (const char* text : {"first", "second", "third"}) {
      publish(target, text, renames);
      EXPECT_EQ(published(target), text);
      EXPECT_THAT(names_of_folder(folder.path()), ElementsAre("best"));
    }
  }
}

TEST(DraftFolder, LeavesNothingWhereItIsNotPublished) {
  const TemporaryFolder folder;
  { const DraftFolder draft(folder.path("best")); }
  EXPECT_TRUE(names_of_folder(folder.path()).empty());
  std::ofstream(folder.path("best")) << "mine";
  EXPECT_ERROR("a file is in the place", publish(folder.path("best"), "x", Renames::of_system()));
  EXPECT_THAT(names_of_folder(folder.path()), ElementsAre("best"));
}

// The old folder stays, or comes back, where a rename is refused.
TEST(DraftFolder, KeepsTheOldOneWhereARenameFails) {
  for (const int failing : {1, 2}) {
    const TemporaryFolder folder;
    const fs::path target = folder.path("best");
    publish(target, "old", Renames::of_system());
    int calls = 0;
    Renames renames = without_exchange();
    renames.rename = [&](const char* from, const char* to) {
      return ++calls == failing ? EACCES : std::rename(from, to);
    };
    EXPECT_ERROR("Permission denied", publish(target, "new", renames));
    EXPECT_EQ(published(target), "old");
    EXPECT_THAT(names_of_folder(folder.path()), ElementsAre("best"));
  }
}

struct Killed {};

// A process that ends before or after any rename leaves a folder that is whole, or one that comes
// back.
TEST(DraftFolder, IsRecoveredWhereverTheProcessEnds) {
  int ends = 0;
  for (const bool can_exchange : {true, false}) {
    for (int at = 0; at < 6; ++at) {
      const TemporaryFolder folder;
      const fs::path target = folder.path("best");
      publish(target, "old", Renames::of_system());
      int moment = 0;
      const auto mortal = [&](Renames::Call call) {
        return [&moment, at, call](const char* from, const char* to) {
          if (moment++ == at) throw Killed();
          const int failed = call(from, to);
          if (moment++ == at) throw Killed();
          return failed;
        };
      };
      Renames renames = can_exchange ? Renames::of_system() : without_exchange();
      renames.exchange = mortal(renames.exchange);
      renames.rename = mortal(renames.rename);
      bool was_killed = false;
      // On the heap and never deleted: a killed process runs no destructor.
      auto* draft = new DraftFolder(target, renames);
      std::ofstream(draft->file("text")) << "new";
      try {
        draft->publish();
      } catch (const Killed&) {
        was_killed = true;
        ++ends;
      }
      recover_folder(target);
      EXPECT_THAT(published(target), AnyOf("old", "new")) << can_exchange << at;
      EXPECT_TRUE(was_killed || published(target) == "new");
      for (const std::string& name : names_of_folder(folder.path())) {
        EXPECT_TRUE(name == "best" || is_draft_of(name, "best")) << name;
      }
      delete draft;
    }
  }
  EXPECT_EQ(ends, 2 + 6);
}

TEST(DraftFolder, RemovesByWayOfANameThatIsNoFolderOfOurs) {
  const TemporaryFolder folder;
  publish(folder.path("checkpoint-000000003"), "x", Renames::of_system());
  remove_folder(folder.path("checkpoint-000000003"));
  EXPECT_TRUE(names_of_folder(folder.path()).empty());
  remove_folder(folder.path("checkpoint-000000003"));  // nothing to do
  EXPECT_TRUE(is_draft_of(".qkv-best.tmp", "best"));
  EXPECT_TRUE(is_draft_of(".qkv-best.old", "best"));
  EXPECT_FALSE(is_draft_of(".qkv-best.tmp.bak", "best"));
  EXPECT_FALSE(is_draft_of(".qkv-best.bak", "best"));
  EXPECT_FALSE(is_draft_of(".qkv-bester.tmp", "best"));
}

}  // namespace
}  // namespace qkv
