#include "text/workspace.h"

#include <utility>

namespace qkv::text {
namespace {

// What a workspace may keep after a long text; beyond that the memory is given back.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

template <class T>
std::size_t held(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

bool is_small(const Workspace& work) {
  return work.words.text.text.capacity() + work.spare.text.text.capacity() +
             held(work.words.text.from) + held(work.spare.text.from) + held(work.words.parts) +
             held(work.spare.parts) + held(work.tokens) + held(work.symbols) + held(work.merges) +
             held(work.best) <=
         kKeptBytes;
}

}  // namespace

std::unique_ptr<Workspace> WorkspacePool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto work = std::move(idle_.back());
      idle_.pop_back();
      return work;
    }
  }
  return std::make_unique<Workspace>();
}

void WorkspacePool::give_back(std::unique_ptr<Workspace> work) noexcept {
  if (!is_small(*work)) {  // the cache is worth keeping, the rest is not
    WordCache cache = std::move(work->cache);
    *work = Workspace{};
    work->cache = std::move(cache);
  }
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(work));
  } catch (...) {  // without memory to remember it, let it go
  }
}

}  // namespace qkv::text
