#include "core/threads.h"

#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "qkv/threads.h"

namespace qkv {
namespace {

class Threads : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = num_threads();
    set_num_threads(GetParam());
  }
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = 1;
};
INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 3, 8),
                         ::testing::PrintToStringParamName());

TEST_P(Threads, RunsEveryIndexOnce) {
  for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    parallel_for(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& n : runs) ASSERT_EQ(n.load(), 1);
  }
  parallel_for(-1, [](std::int64_t) { FAIL(); });
}

TEST_P(Threads, RethrowsOneExceptionAndGoesOn) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_THROW(parallel_for(100,
                              [](std::int64_t i) {
                                if (i % 10 == 3) throw std::out_of_range("body");
                              }),
                 std::out_of_range);
    std::atomic<int> sum = 0;
    parallel_for(100, [&](std::int64_t) { ++sum; });
    ASSERT_EQ(sum.load(), 100);
  }
}

TEST_P(Threads, NestsWithoutDeadlock) {
  std::atomic<int> runs = 0;
  parallel_for(10, [&](std::int64_t) {
    parallel_for(10, [&](std::int64_t) { parallel_for(2, [&](std::int64_t) { ++runs; }); });
  });
  EXPECT_EQ(runs.load(), 200);
  EXPECT_THROW(parallel_for(4,
                            [](std::int64_t) {
                              parallel_for(4, [](std::int64_t) { throw std::logic_error("in"); });
                            }),
               std::logic_error);
}

TEST_P(Threads, RunsManySmallLoops) {
  std::vector<std::int64_t> values(8);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    parallel_for(8, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += i; });
  }
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], 2000 * i);
}

TEST_P(Threads, ServesSeveralCallersAtOnce) {
  std::vector<std::int64_t> totals(4);
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < totals.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<std::int64_t> parts(16);
        parallel_for(16, [&](std::int64_t i) { parts[static_cast<std::size_t>(i)] = i; });
        totals[caller] += std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::int64_t total : totals) EXPECT_EQ(total, 200 * 120);
}

TEST_P(Threads, UsesNoMoreThreadsThanAsked) {
  EXPECT_EQ(num_threads(), GetParam());
  std::mutex mutex;
  std::set<std::thread::id> ids;
  for (int repeat = 0; repeat < 20; ++repeat) {
    parallel_for(64, [&](std::int64_t) {
      const std::scoped_lock lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
  }
  EXPECT_LE(ids.size(), static_cast<std::size_t>(GetParam()));
}

TEST(SetNumThreads, RefusesImpossibleCounts) {
  const int before = num_threads();
  EXPECT_ERROR("set_num_threads: expected 1 to", set_num_threads(0));
  EXPECT_ERROR("got -4", set_num_threads(-4));
  EXPECT_ERROR("set_num_threads", set_num_threads(1 << 30));
  EXPECT_EQ(num_threads(), before);
}

TEST(SetNumThreads, MayChangeBetweenLoops) {
  const int before = num_threads();
  for (int repeat = 0; repeat < 30; ++repeat) {
    set_num_threads(1 + repeat % 4);
    std::atomic<int> runs = 0;
    parallel_for(10, [&](std::int64_t) { ++runs; });
    ASSERT_EQ(runs.load(), 10);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace qkv
