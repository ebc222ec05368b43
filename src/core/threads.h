// A small pool: the calling thread and num_threads() - 1 workers share the indices of a loop.
#pragma once

#include <cstdint>

namespace qkv {

// A borrowed callable: void(std::int64_t index). Cheaper than std::function; lives for the call.
class LoopBody {
 public:
  template <class F>
  static LoopBody of(F& body) {
    return {&body, [](void* object, std::int64_t i) { (*static_cast<F*>(object))(i); }};
  }
  void operator()(std::int64_t index) const { call_(object_, index); }

 private:
  using Call = void (*)(void*, std::int64_t);
  LoopBody(void* object, Call call) : object_(object), call_(call) {}

  void* object_;
  Call call_;
};

void run_loop(std::int64_t count, LoopBody body);

// Runs body(0) .. body(count - 1) in any order on all threads and returns when all are done. The
// first exception is rethrown here. Called from inside a loop it runs serially. Bodies must write
// to disjoint memory and may not fork; which thread runs an index never changes a result.
template <class F>
void parallel_for(std::int64_t count, F&& body) {
  run_loop(count, LoopBody::of(body));
}

}  // namespace qkv
