#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/check.h"
#include "qkv/data.h"

namespace qkv {

struct Prefetch::State {
  State(const Dataset& from, DataPosition start, int most)
      : data(from), depth(static_cast<std::size_t>(most)), next(start) {}

  Dataset data;
  std::size_t depth;
  DataPosition next;  // to be returned

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;
  std::exception_ptr error;  // met behind the batches that are ready
  bool stopping = false;
  std::thread thread;

  void work(DataPosition position) {
    try {
      while (true) {
        Batch batch = data.batch(position);
        position = data.after(position);
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || ready.size() < depth; });
        if (stopping) return;
        ready.push_back(std::move(batch));
        changed.notify_all();
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      error = std::current_exception();
      changed.notify_all();
    }
  }
};

Prefetch::Prefetch(const Dataset& data, DataPosition start, int depth) {
  check(depth >= 1, "Prefetch: depth must be at least 1, got {}", depth);
  state_ = std::make_unique<State>(data, start, depth);
  try {
    state_->thread = std::thread([state = state_.get(), start] { state->work(start); });
  } catch (const std::system_error& error) {
    fail("Prefetch: cannot start a thread: {}", error.what());
  }
}

Prefetch::~Prefetch() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

Batch Prefetch::next() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return !state_->ready.empty() || state_->error; });
  if (state_->ready.empty()) std::rethrow_exception(state_->error);
  Batch batch = std::move(state_->ready.front());
  state_->ready.pop_front();
  lock.unlock();
  state_->changed.notify_all();
  state_->next = state_->data.after(state_->next);
  return batch;
}

DataPosition Prefetch::position() const { return state_->next; }

}  // namespace qkv
