// Locks: one holder at a time, and none once it has ended.
#include "io/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "expect_error.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FileLock, IsHeldOnceAndNamesItsHolder) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("x.lock");
  std::optional<FileLock> first(std::in_place, path, "the run in runs/x");
  EXPECT_EQ(first->unsupported(), "");
  const std::string said = testing::error_of([&] { FileLock(path, "the run in runs/x"); });
  EXPECT_THAT(said, AllOf(HasSubstr("the run in runs/x is in use by process " +
                                    std::to_string(getpid()) + " on "),
                          HasSubstr(path)));
  first.reset();
  const FileLock again(path, "x");
  EXPECT_TRUE(std::filesystem::exists(path));
}

// A process that is killed lets go; what it started, and still runs, does not hold the lock.
TEST(FileLock, EndsWithItsHolder) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path("x.lock");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(path, "x");
    const pid_t sleeper = fork();
    if (sleeper == 0) {
      execlp("sleep", "sleep", "30", nullptr);
      _exit(1);
    }
    static_cast<void>(!write(ready[1], &sleeper, sizeof sleeper));
    while (true) pause();
  }
  pid_t sleeper = 0;
  ASSERT_EQ(read(ready[0], &sleeper, sizeof sleeper), static_cast<ssize_t>(sizeof sleeper));
  EXPECT_ERROR("process " + std::to_string(child), FileLock(path, "x"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // Between fork and exec the grandchild has the lock as well: it may take a moment.
  bool is_free = false;
  for (int i = 0; i < 2000 && !is_free; ++i) {
    try {
      const FileLock lock(path, "x");
      is_free = true;
    } catch (const Error&) {
      usleep(5000);
    }
  }
  EXPECT_TRUE(is_free);
  EXPECT_EQ(kill(sleeper, SIGKILL), 0);
  close(ready[0]), close(ready[1]);
}

TEST(FileLock, WritesToNothingButAFileOfItsOwn) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path("mine")) << "kept";
  std::filesystem::create_symlink("mine", folder.path("link.lock"));
  EXPECT_ERROR("link.lock", FileLock(folder.path("link.lock"), "x"));
  std::string text;
  std::getline(std::ifstream(folder.path("mine")), text);
  EXPECT_EQ(text, "kept");
  EXPECT_ERROR("directory", FileLock(folder.path(), "x"));
  EXPECT_ERROR("none", FileLock(folder.path("none/x.lock"), "x"));
}

}  // namespace
}  // namespace qkv
