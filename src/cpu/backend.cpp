#include "cpu/backend.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/threads.h"
#include "cpu/kernels.h"

namespace qkv {
namespace {

constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_class_v<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_class_v<To>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Calls body(a, b, count, stride_a, stride_b) for each innermost run of two tensors of one shape.
template <class A, class B, class Body>
void for_each_run(const Tensor& x, const Tensor& y, Body body) {
  const int rank = x.rank();
  if (x.numel() == 0) return;
  const A* a = x.data<A>();
  B* b = y.data<B>();
  if (rank == 0) return body(a, b, 1, 1, 1);
  const std::int64_t run = x.size(-1), sa = x.stride(-1), sb = y.stride(-1);
  const std::int64_t runs = x.numel() / run;
  constexpr std::int64_t kRunsPerTask = 64;
  parallel_for((runs + kRunsPerTask - 1) / kRunsPerTask, [&](std::int64_t task) {
    const std::int64_t end = std::min(runs, (task + 1) * kRunsPerTask);
    for (std::int64_t index = task * kRunsPerTask; index < end; ++index) {
      std::int64_t rest = index, at_a = 0, at_b = 0;
      for (int axis = rank - 2; axis >= 0; --axis) {
        const std::int64_t i = rest % x.size(axis);
        rest /= x.size(axis);
        at_a += i * x.stride(axis);
        at_b += i * y.stride(axis);
      }
      body(a + at_a, b + at_b, run, sa, sb);
    }
  });
}

class CpuBackend final : public Backend {
 public:
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    const std::size_t rounded =
        (std::max<std::size_t>(bytes, 1) + kAlignment - 1) & ~(kAlignment - 1);
    void* data = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
    check(data != nullptr, "out of memory: {} bytes on cpu", bytes);
    return std::make_shared<Storage>(
        data, bytes, kCpu, [](void* p, void*) { std::free(p); }, nullptr);
  }

  void fill(Tensor& x, double value) override {
    dispatch_all(x.dtype(), [&]<class T>() {
      const T element = convert<T>(value);
      T* data = x.data<T>();
      std::fill(data, data + x.numel(), element);
    });
  }

  void copy(const Tensor& from, Tensor& to) override {
    dispatch_all(from.dtype(), [&]<class From>() {
      dispatch_all(to.dtype(), [&]<class To>() {
        for_each_run<From, To>(
            from, to,
            [](const From* a, To* b, std::int64_t count, std::int64_t sa, std::int64_t sb) {
              if (sa == 1 && sb == 1) {
                std::transform(a, a + count, b, convert<To, From>);
              } else {
                for (std::int64_t i = 0; i < count; ++i) b[i * sb] = convert<To>(a[i * sa]);
              }
            });
      });
    });
  }

  void softmax(const Tensor& x, Tensor& y) override { cpu::softmax(x, y); }
  void attention_forward(const AttentionProblem& problem, const AttentionResults& out) override {
    cpu::attention_forward(problem, out);
  }
  void attention_backward(const AttentionProblem& problem,
                          const AttentionBackward& tensors) override {
    cpu::attention_backward(problem, tensors);
  }
  void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted) override {
    cpu::attention_weights(problem, wanted);
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend instance;
  return instance;
}

}  // namespace qkv
