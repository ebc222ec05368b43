#include "core/process_mutex.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

namespace qkv {
namespace {

struct ProcessMutexes {
  std::mutex mutex;  // of the list
  std::vector<ProcessMutex*> list;

  ProcessMutexes() {
    // Without memory for them there are no handlers, and forks are as they would be.
    static_cast<void>(pthread_atfork(lock_all, unlock_all, unlock_all));
  }
  static void lock_all();
  static void unlock_all();
};

// Never destroyed: a mutex of another static may outlive it.
ProcessMutexes& process_mutexes() {
  static auto& instance = *new ProcessMutexes;
  return instance;
}

void ProcessMutexes::lock_all() {
  ProcessMutexes& all = process_mutexes();
  all.mutex.lock();
  for (ProcessMutex* mutex : all.list) mutex->lock();
}

void ProcessMutexes::unlock_all() {
  ProcessMutexes& all = process_mutexes();
  for (auto mutex = all.list.rbegin(); mutex != all.list.rend(); ++mutex) (*mutex)->unlock();
  all.mutex.unlock();
}

}  // namespace

ProcessMutex::ProcessMutex() {
  ProcessMutexes& all = process_mutexes();
  const std::scoped_lock lock(all.mutex);
  all.list.push_back(this);
}

ProcessMutex::~ProcessMutex() {
  ProcessMutexes& all = process_mutexes();
  const std::scoped_lock lock(all.mutex);
  all.list.erase(std::find(all.list.begin(), all.list.end(), this));
}

}  // namespace qkv
