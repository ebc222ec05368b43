#include "cpu/backend.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "core/dispatch.h"
#include "cpu/int8_linear.h"
#include "cpu/kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/memory.h"

namespace qkv {
namespace {

class CpuBackend final : public Backend {
 public:
  MemoryUse memory_use() override { return cpu::memory_use(); }
  void reset_peak_memory() override { cpu::reset_peak_memory(); }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    void* data = cpu::allocate(bytes);
    if (data == nullptr) fail<OutOfMemory>("out of memory: {} bytes on cpu", bytes);
    const auto release = [](void* p, void* size) {
      cpu::release(p, reinterpret_cast<std::uintptr_t>(size));
    };
    return std::make_shared<Storage>(data, bytes, kCpu, release,
                                     reinterpret_cast<void*>(std::uintptr_t{bytes}));
  }

  void fill(Tensor& x, double value) override {
    dispatch_all(x.dtype(), [&]<class T>() {
      const T element = [&] {
        if constexpr (std::is_class_v<T>) {
          return T(static_cast<float>(value));
        } else {
          return static_cast<T>(value);
        }
      }();
      T* data = x.data<T>();
      std::fill(data, data + x.numel(), element);
    });
  }

  void copy(const Tensor& from, Tensor& to) override { cpu::copy(from, to); }
  void store_rows(const Tensor& x, const Tensor& at, Tensor& data) override {
    cpu::store_rows(x, at, data);
  }

  void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) override {
    cpu::binary(op, a, b, y);
  }
  void scale(const Tensor& x, double factor, Tensor& y) override { cpu::scale(x, factor, y); }
  void sum(const Tensor& x, Tensor& y) override { cpu::sum(x, y); }
  void head_figures(std::span<const HeadFigures> items, Tensor& y) override {
    cpu::head_figures(items, y);
  }
  void activate(Activation f, const Tensor& x, Tensor& y) override { cpu::activate(f, x, y); }
  void activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) override {
    cpu::activate_backward(f, x, dy, dx);
  }
  void gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) override {
    cpu::gated(f, gate, up, y);
  }
  void gated_backward(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                      Tensor& dgate, Tensor& dup) override {
    cpu::gated_backward(f, gate, up, dy, dgate, dup);
  }
  void dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y) override {
    cpu::dropout(x, p, seed, y);
  }
  void matmul(const MatmulProblem& problem) override { cpu::matmul(problem); }
  std::shared_ptr<const Packed> pack(const Tensor& weight) override { return cpu::pack(weight); }
  std::shared_ptr<const Packed> pack_int8(const Int8Weight& weight) override {
    return cpu::pack_int8(weight);
  }
  void linear(const LinearProblem& problem) override { cpu::linear(problem); }
  void quantize(const Tensor& x, const Rounding& how, Tensor& values, Tensor& scale) override {
    cpu::quantize(x, how, values, scale);
  }
  void dequantize(const Tensor& values, const Tensor& scale, const Rounding& how,
                  Tensor& y) override {
    cpu::dequantize(values, scale, how, y);
  }
  void norm(const NormProblem& problem) override { cpu::norm(problem); }
  void norm_backward(const NormBackward& problem) override { cpu::norm_backward(problem); }
  void rotary(const RotaryProblem& problem) override { cpu::rotary(problem); }
  void embedding(const Tensor& ids, const Tensor& table, Tensor& y) override {
    cpu::embedding(ids, table, y);
  }
  void embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                          Tensor& dtable) override {
    cpu::embedding_backward(ids, dy, padding, dtable);
  }
  void cross_entropy(const CrossEntropyProblem& problem) override { cpu::cross_entropy(problem); }
  void cross_entropy_backward(const CrossEntropyBackward& problem) override {
    cpu::cross_entropy_backward(problem);
  }
  void sample(const SampleProblem& problem) override { cpu::sample(problem); }
  std::unique_ptr<Reading> optimize(const OptimizerProblem& problem) override {
    cpu::optimize(problem);
    return begin_reading(problem.norm);
  }
  void softmax(const Tensor& x, Tensor& y) override { cpu::softmax(x, y); }
  void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) override {
    cpu::softmax_backward(y, dy, dx);
  }
  void keep_triangle(const Tensor& x, bool upper, Tensor& y) override {
    cpu::keep_triangle(x, upper, y);
  }
  void running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) override {
    cpu::running_sum(x, carry, reverse, y);
  }
  void divide_rows(const Tensor& x, const Tensor& by, Tensor& y) override {
    cpu::divide_rows(x, by, y);
  }
  void softmax_features(const FeatureProblem& problem) override { cpu::softmax_features(problem); }
  void softmax_features_backward(const FeatureBackward& problem) override {
    cpu::softmax_features_backward(problem);
  }
  void attention_forward(const AttentionProblem& problem, const AttentionResults& out) override {
    cpu::attention_forward(problem, out);
  }
  bool reads_pages(const AttentionProblem& problem, Statistics) override {
    return cpu::reads_pages(problem);
  }
  void attention_backward(const AttentionProblem& problem,
                          const AttentionBackward& tensors) override {
    cpu::attention_backward(problem, tensors);
  }
  void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted) override {
    cpu::attention_weights(problem, wanted);
  }
  AttentionKernels attention_kernels(const AttentionProblem& problem,
                                     const AttentionOptions&) override {
    return cpu::attention_kernels(problem);
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend instance;
  return instance;
}

}  // namespace qkv
