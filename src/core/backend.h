// The contract of a device: memory, and one kernel per operator. Kernels only fill memory; their
// arguments have been checked and their results allocated by src/ops.
#pragma once

#include <cstddef>
#include <memory>

#include "core/attention_problem.h"
#include "qkv/tensor.h"

namespace qkv {

class Backend {
 public:
  virtual ~Backend() = default;

  // Throws Error when there is not enough memory. The bytes are 64-byte aligned.
  virtual std::shared_ptr<Storage> allocate(std::size_t bytes) = 0;
  virtual void fill(Tensor& x, double value) = 0;
  // Same shape; any strides; converts between dtypes.
  virtual void copy(const Tensor& from, Tensor& to) = 0;

  // Over the last axis of x and y, both contiguous.
  virtual void softmax(const Tensor& x, Tensor& y) = 0;

  virtual void attention_forward(const AttentionProblem& problem, const AttentionResults& out) = 0;
  virtual void attention_backward(const AttentionProblem& problem,
                                  const AttentionBackward& tensors) = 0;
  virtual void attention_weights(const AttentionProblem& problem,
                                 const AttentionWeights& wanted) = 0;
};

// The backend of a device, made on first use; Error when this build or machine has none.
Backend& backend(Device device);

}  // namespace qkv
