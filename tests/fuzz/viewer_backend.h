// As much of a device as a picture needs, so that the fuzzer of the viewer compiles no kernels:
// memory, copies of f32, and weights that are the same for every key.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "core/backend.h"
#include "core/check.h"

namespace qkv {

class ViewerBackend final : public Backend {
 public:
  MemoryUse memory_use() override { return {}; }
  void reset_peak_memory() override {}
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    check(bytes <= 1 << 24, "a fuzzer has no {} bytes", bytes);
    void* data = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
    const auto release = [](void* block, void*) { std::free(block); };
    return std::make_shared<Storage>(data, bytes, Device{}, release, nullptr);
  }
  void fill(Tensor& x, double value) override {
    float* values = x.data<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) values[i] = static_cast<float>(value);
  }
  void copy(const Tensor& from, Tensor& to) override {
    check(from.dtype() == DType::f32 && to.dtype() == DType::f32, "a fuzzer copies f32");
    const std::function<void(const float*, float*, int)> walk = [&](const float* source,
                                                                    float* target, int axis) {
      if (axis == from.rank()) {
        *target = *source;
        return;
      }
      for (std::int64_t i = 0; i < from.size(axis); ++i) {
        walk(source + i * from.stride(axis), target + i * to.stride(axis), axis + 1);
      }
    };
    walk(from.data<float>(), to.data<float>(), 0);
  }
  void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted) override {
    Tensor weights = wanted.weights;
    fill(weights, 1.0 / static_cast<double>(problem.k.size(2)));
  }

  void store_rows(const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void binary(BinaryOp, const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void scale(const Tensor&, double, Tensor&) override { absent(); }
  void sum(const Tensor&, Tensor&) override { absent(); }
  void head_figures(std::span<const HeadFigures>, Tensor&) override { absent(); }
  void activate(Activation, const Tensor&, Tensor&) override { absent(); }
  void activate_backward(Activation, const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void gated(Activation, const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void gated_backward(Activation, const Tensor&, const Tensor&, const Tensor&, Tensor&,
                      Tensor&) override {
    absent();
  }
  void dropout(const Tensor&, double, std::uint64_t, Tensor&) override { absent(); }
  void matmul(const MatmulProblem&) override { absent(); }
  std::shared_ptr<const Packed> pack(const Tensor&) override { absent(); }
  void linear(const LinearProblem&) override { absent(); }
  void norm(const NormProblem&) override { absent(); }
  void norm_backward(const NormBackward&) override { absent(); }
  void rotary(const RotaryProblem&) override { absent(); }
  void embedding(const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void embedding_backward(const Tensor&, const Tensor&, std::int64_t, Tensor&) override {
    absent();
  }
  void cross_entropy(const CrossEntropyProblem&) override { absent(); }
  void cross_entropy_backward(const CrossEntropyBackward&) override { absent(); }
  void sample(const SampleProblem&) override { absent(); }
  std::unique_ptr<Reading> optimize(const OptimizerProblem&) override { absent(); }
  void softmax(const Tensor&, Tensor&) override { absent(); }
  void softmax_backward(const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void keep_triangle(const Tensor&, bool, Tensor&) override { absent(); }
  void running_sum(const Tensor&, Tensor&, bool, Tensor&) override { absent(); }
  void divide_rows(const Tensor&, const Tensor&, Tensor&) override { absent(); }
  void softmax_features(const FeatureProblem&) override { absent(); }
  void softmax_features_backward(const FeatureBackward&) override { absent(); }
  void attention_forward(const AttentionProblem&, const AttentionResults&) override { absent(); }
  bool reads_pages(const AttentionProblem&, Statistics) override { return false; }
  void attention_backward(const AttentionProblem&, const AttentionBackward&) override { absent(); }
  AttentionKernels attention_kernels(const AttentionProblem&, const AttentionOptions&) override {
    absent();
  }

 private:
  [[noreturn]] static void absent() { fail("a fuzzer computes nothing"); }
};

}  // namespace qkv
