// A mutex that fork() waits for.
#pragma once

#include <mutex>

namespace qkv {

// Guards what the whole process shares. The child of a fork has one thread, the one that forked: a
// std::mutex that another thread held at that moment stays locked there for ever. fork() takes
// every ProcessMutex before and releases it after, in parent and child, so that what each guards is
// whole in both. It takes them one after the other: who holds one may not wait for another.
class ProcessMutex {
 public:
  ProcessMutex();
  ~ProcessMutex();
  ProcessMutex(const ProcessMutex&) = delete;
  ProcessMutex& operator=(const ProcessMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool try_lock() { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

}  // namespace qkv
