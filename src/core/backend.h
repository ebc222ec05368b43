// The contract of a device: memory, and one kernel per operator. Kernels only fill memory; their
// arguments have been checked and their results allocated by src/ops.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/attention_problem.h"
#include "core/feature_problem.h"
#include "core/op_problems.h"
#include "qkv/error.h"
#include "qkv/memory.h"
#include "qkv/tensor.h"

namespace qkv {

// Work that no recording can hold, because the host or its memory has a part in it. Whoever asked
// for a recording can then do without one; any other Error is wrong with or without it.
class NotRecordable : public Error {
 public:
  using Error::Error;
};

// Work of a device that was recorded once and can be queued as often as wanted: the same kernels on
// the same memory, whose contents may have changed.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// A tensor on its way to the CPU. What was queued behind it is not waited for.
class Reading {
 public:
  virtual ~Reading() = default;
  virtual Tensor wait() = 0;  // on the CPU; the same as often as it is asked for
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual void synchronize() {}
  virtual MemoryUse memory_use() = 0;
  virtual void reset_peak_memory() = 0;
  // Throws Error when there is not enough memory. The bytes are 64-byte aligned.
  virtual std::shared_ptr<Storage> allocate(std::size_t bytes) = 0;
  virtual void fill(Tensor& x, double value) = 0;
  // Same shape; any strides; converts between dtypes.
  virtual void copy(const Tensor& from, Tensor& to) = 0;
  // Queues a copy of x as it is now. A device that does at once what it is told has it already.
  virtual std::unique_ptr<Reading> begin_reading(const Tensor& x);
  // Rows [at, at + S) of data [B, H, N, D] become x [B, H, S, D]; both of one dtype and any
  // strides. `at`, i64 [1], is read by the device; what would lie outside of data is not written.
  virtual void store_rows(const Tensor& x, const Tensor& at, Tensor& data) = 0;
  // Records what body() queues in the calling thread, and runs nothing of it. It may neither wait
  // for the device nor send it bytes of the CPU; tensors it makes belong to the recording, which
  // overwrites them each time it is replayed. NotRecordable where the device records nothing, or
  // not this body.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& body);

  // Tensors of one shape, any strides; b may differ in dtype from a and y.
  virtual void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  // y = factor * x, any strides.
  virtual void scale(const Tensor& x, double factor, Tensor& y) = 0;
  // y has the rank of x and extent 1 along the axes summed over; it is contiguous, and of the dtype
  // of x or f32.
  virtual void sum(const Tensor& x, Tensor& y) = 0;
  // y f32, contiguous: the figures of the heads of each item, one item after the other.
  virtual void head_figures(std::span<const HeadFigures> items, Tensor& y) = 0;

  // Contiguous tensors of one shape and dtype.
  virtual void activate(Activation f, const Tensor& x, Tensor& y) = 0;
  virtual void activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) = 0;
  // y = f(gate) * up; rows may be strided (the halves of one product), y is contiguous.
  virtual void gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) = 0;
  virtual void gated_backward(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                              Tensor& dgate, Tensor& dup) = 0;
  virtual void dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y) = 0;

  virtual void matmul(const MatmulProblem& problem) = 0;
  virtual std::shared_ptr<const Packed> pack(const Tensor& weight) = 0;  // [N, K], any strides
  virtual void linear(const LinearProblem& problem) = 0;

  // int8, which a device may lack: then each of these is an Error.
  virtual std::shared_ptr<const Packed> pack_int8(const Int8Weight& weight);
  // x floating [A, B, S, K], any strides -> values i8, any strides but 1 along K; scale f32
  // [A, B, S, G], any strides.
  virtual void quantize(const Tensor& x, const Rounding& how, Tensor& values, Tensor& scale);
  // The way back: y floating, contiguous; values may have any strides.
  virtual void dequantize(const Tensor& values, const Tensor& scale, const Rounding& how,
                          Tensor& y);

  virtual void norm(const NormProblem& problem) = 0;
  virtual void norm_backward(const NormBackward& problem) = 0;
  virtual void rotary(const RotaryProblem& problem) = 0;
  // ids i64 [n], contiguous, checked; table [V, D], rows contiguous; y [n, D].
  virtual void embedding(const Tensor& ids, const Tensor& table, Tensor& y) = 0;
  // dtable (f32, zero before) += rows of dy; ids equal to `padding` are passed over.
  virtual void embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                                  Tensor& dtable) = 0;
  virtual void cross_entropy(const CrossEntropyProblem& problem) = 0;
  virtual void cross_entropy_backward(const CrossEntropyBackward& problem) = 0;
  virtual void sample(const SampleProblem& problem) = 0;
  // Waits for nothing: whether the norm is finite is decided on the device. The norm that is
  // returned sets out before parameters are changed.
  virtual std::unique_ptr<Reading> optimize(const OptimizerProblem& problem) = 0;

  // Over the last axis; all contiguous.
  virtual void softmax(const Tensor& x, Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) = 0;

  // y = x without what lies above the diagonal (below it: upper); x f32 [n, C, C], y of any
  // floating dtype or x itself; contiguous.
  virtual void keep_triangle(const Tensor& x, bool upper, Tensor& y) = 0;
  // x f32 [G, N, W] and carry f32 [G, W], contiguous. y[n] becomes carry + the sum of the x before
  // n (after n: reverse), and carry becomes the sum of all; y like x, of any floating dtype or x
  // itself.
  virtual void running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) = 0;
  // y = x / by: x [rows, W], whose rows may stand further apart, by f32 [rows], y [rows, W]
  // contiguous; x and y of any floating dtype.
  virtual void divide_rows(const Tensor& x, const Tensor& by, Tensor& y) = 0;
  virtual void softmax_features(const FeatureProblem& problem) = 0;
  virtual void softmax_features_backward(const FeatureBackward& problem) = 0;

  virtual void attention_forward(const AttentionProblem& problem, const AttentionResults& out) = 0;
  // Whether attention_forward reads these keys and values in pages; else they come in one piece.
  virtual bool reads_pages(const AttentionProblem& problem, Statistics statistics) = 0;
  virtual void attention_backward(const AttentionProblem& problem,
                                  const AttentionBackward& tensors) = 0;
  virtual void attention_weights(const AttentionProblem& problem,
                                 const AttentionWeights& wanted) = 0;
  virtual AttentionKernels attention_kernels(const AttentionProblem& problem,
                                             const AttentionOptions& options) = 0;
};

// The backend of a device, made on first use; Error when this build or machine has none.
Backend& backend(Device device);

}  // namespace qkv
