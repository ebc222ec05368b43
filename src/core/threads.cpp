#include "core/threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/process_mutex.h"
#include "qkv/threads.h"

namespace qkv {
namespace {

constexpr int kMaxThreads = 1024;
// How long an idle worker polls before it sleeps: longer than the gap between two operators of a
// model, shorter than anyone would notice on a battery.
constexpr int kSpins = 4000;

thread_local bool inside_loop = false;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Of QKV_THREADS, or as many as there are cores for this process.
int default_threads() {
  const char* text = std::getenv("QKV_THREADS");
  if (text != nullptr && *text != '\0') {
    const char* const end = text + std::strlen(text);
    int count = 0;
    const auto [stop, error] = std::from_chars(text, end, count);
    check(error == std::errc() && stop == end && count >= 1 && count <= kMaxThreads,
          "QKV_THREADS must be a whole number from 1 to {}, got '{}'", kMaxThreads, text);
    return count;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

struct Loop {
  LoopBody body;
  std::int64_t count;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> working{0};  // workers inside
  std::mutex error_mutex;
  std::exception_ptr error;

  Loop(std::int64_t n, LoopBody b) : body(b), count(n) {}

  void work() {
    inside_loop = true;
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        body(i);
      } catch (...) {
        const std::scoped_lock lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
    inside_loop = false;
  }
};

class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      stop();  // a std::thread that is destroyed before it is joined ends the program
      fail("cannot start {} threads: {}; ask for fewer with set_num_threads or QKV_THREADS",
           threads, error.what());
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(Loop& loop) {
    const std::scoped_lock one_loop_at_a_time(run_mutex_);
    {
      const std::scoped_lock lock(mutex_);
      loop_ = &loop;
      epoch_.fetch_add(1, std::memory_order_release);
    }
    if (sleeping_.load() > 0) wake_.notify_all();
    loop.work();
    {
      // Who has not come by now need not: on a busy machine that may be a while.
      const std::scoped_lock lock(mutex_);
      loop_ = nullptr;
    }
    for (int spin = 0; loop.working.load(std::memory_order_acquire) > 0; ++spin) {
      if (spin < kSpins) {
        pause_briefly();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    epoch_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void serve() {
    std::uint64_t seen = 0;
    while (true) {
      for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen && spin < kSpins; ++spin) {
        pause_briefly();
      }
      Loop* loop = nullptr;
      {
        std::unique_lock lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return stopping_ || epoch_.load() != seen; });
        sleeping_.fetch_sub(1);
        if (stopping_) return;
        seen = epoch_.load();
        loop = loop_;
        if (loop == nullptr) continue;
        loop->working.fetch_add(1);
      }
      loop->work();
      loop->working.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<int> sleeping_{0};
  Loop* loop_ = nullptr;
  bool stopping_ = false;
};

struct PoolHolder {
  ProcessMutex mutex;
  std::optional<int> set;  // by set_num_threads
  std::optional<int> by_default;
  std::shared_ptr<Pool> pool;

  PoolHolder() { static_cast<void>(pthread_atfork(nullptr, nullptr, abandon_pool)); }

  // An Error each time while QKV_THREADS is wrong and no other number was set.
  int wanted() {
    if (set) return *set;
    if (!by_default) by_default = default_threads();
    return *by_default;
  }
  std::shared_ptr<Pool> get() {
    const std::scoped_lock lock(mutex);
    if (!pool || pool->threads() != wanted()) pool = std::make_shared<Pool>(wanted());
    return pool;
  }
  // In the child of a fork, which has none of the workers: the next loop starts a pool of its own.
  // Nothing may touch the old one, whose mutexes are as other threads left them and whose threads
  // cannot be joined; it is kept, not destroyed.
  static void abandon_pool();
};

PoolHolder& holder() {
  static PoolHolder instance;
  return instance;
}

void PoolHolder::abandon_pool() {
  static auto& abandoned = *new std::vector<std::shared_ptr<Pool>>;
  if (holder().pool) abandoned.push_back(std::move(holder().pool));
}

}  // namespace

int num_threads() {
  const std::scoped_lock lock(holder().mutex);
  return holder().wanted();
}

void set_num_threads(int count) {
  check(count >= 1 && count <= kMaxThreads, "set_num_threads: expected 1 to {}, got {}",
        kMaxThreads, count);
  const std::scoped_lock lock(holder().mutex);
  holder().set = count;
}

void run_loop(std::int64_t count, LoopBody body) {
  if (count <= 0) return;
  Loop loop(count, body);
  if (count == 1 || inside_loop || num_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  holder().get()->run(loop);
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace qkv
