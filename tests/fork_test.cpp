// Processes that fork: the child has threads of its own, and the parent keeps its.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "core/process_mutex.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "qkv/threads.h"

namespace qkv::test {
namespace {

// The thread sanitizer lets no child of a process with threads start a thread.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMayFork = false;
#else
constexpr bool kMayFork = true;
#endif

// Ends the child as programs end, with the destructors of statics; the address sanitizer would take
// what the threads of the parent hold for leaks.
[[noreturn]] void leave(int status) {
#if defined(__SANITIZE_ADDRESS__)
  ::_exit(status);
#else
  std::exit(status);
#endif
}

// Whether a child came back from `body` with true, and ended. One that hangs is killed.
bool holds_in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);  // else the child writes it, too
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool holds = false;
    try {
      holds = body();
    } catch (...) {
    }
    leave(holds ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Fork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kMayFork) GTEST_SKIP() << "not under the thread sanitizer";
    before_ = num_threads();
    set_num_threads(4);
    x_ = Generator(3).normal({200, 300});
    expected_ = work();
  }
  void TearDown() override {
    if (kMayFork) set_num_threads(before_);
  }

  // Loops of several threads, and a block of memory that is kept for the next.
  std::vector<float> work() const {
    const Tensor large = Tensor::zeros({9 << 20});
    return add(matmul(x_, transpose(x_, 0, 1)), slice(large, 0, 0, 1)).to_vector<float>();
  }
  bool works() const { return work() == expected_; }

  int before_ = 1;
  Tensor x_;
  std::vector<float> expected_;
};

TEST_F(Fork, AChildRunsOperators) {
  EXPECT_TRUE(holds_in_child([&] { return works() && num_threads() == 4; }));
  EXPECT_TRUE(works());
}

TEST_F(Fork, AChildThatRunsNothingEnds) {
  EXPECT_TRUE(holds_in_child([] { return true; }));
  EXPECT_TRUE(works());
}

TEST_F(Fork, AChildForksAgain) {
  EXPECT_TRUE(holds_in_child([&] {
    const bool first = holds_in_child([&] { return works(); });
    return first && works() && holds_in_child([&] { return works(); }) && works();
  }));
}

TEST_F(Fork, AChildChoosesItsThreads) {
  EXPECT_TRUE(holds_in_child([&] {
    set_num_threads(2);
    return works();
  }));
  EXPECT_EQ(num_threads(), 4);
}

TEST_F(Fork, WhileOtherThreadsRunOperators) {
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!done) wrong += works() ? 0 : 1;
    });
  }
  for (int n = 0; n < 6; ++n) {
    EXPECT_TRUE(holds_in_child([&] { return works(); })) << n;
  }
  done = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Fork, WaitsForWhoHoldsAMutexOfTheProcess) {
  static ProcessMutex mutex;
  std::atomic<bool> held = false;
  std::atomic<bool> released = false;
  std::thread other([&] {
    mutex.lock();
    held = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    released = true;
    mutex.unlock();
  });
  while (!held) std::this_thread::yield();
  EXPECT_TRUE(holds_in_child([&] { return released && mutex.try_lock(); }));
  other.join();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

}  // namespace
}  // namespace qkv::test
