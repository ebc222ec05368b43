// The backend of one CUDA device. Each kernel is a method, defined in the file of its operator.
//
// Everything a device does is queued on one stream, in the order of the calls: memory that is freed
// may be handed out again at once, because whoever gets it writes after whoever had it. Nothing
// waits for the device but who wants bytes of it on the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "core/backend.h"

namespace qkv {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  void synchronize() override;
  MemoryUse memory_use() override;
  void reset_peak_memory() override;
  std::shared_ptr<Storage> allocate(std::size_t bytes) override;
  void fill(Tensor& x, double value) override;
  void copy(const Tensor& from, Tensor& to) override;
  std::unique_ptr<Reading> begin_reading(const Tensor& x) override;
  void store_rows(const Tensor& x, const Tensor& at, Tensor& data) override;
  std::unique_ptr<Recording> record(const std::function<void()>& body) override;
  void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale(const Tensor& x, double factor, Tensor& y) override;
  void sum(const Tensor& x, Tensor& y) override;
  void head_figures(std::span<const HeadFigures> items, Tensor& y) override;
  void activate(Activation f, const Tensor& x, Tensor& y) override;
  void activate_backward(Activation f, const Tensor& x, const Tensor& dy, Tensor& dx) override;
  void gated(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) override;
  void gated_backward(Activation f, const Tensor& gate, const Tensor& up, const Tensor& dy,
                      Tensor& dgate, Tensor& dup) override;
  void dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y) override;
  void matmul(const MatmulProblem& problem) override;
  std::shared_ptr<const Packed> pack(const Tensor& weight) override;
  void linear(const LinearProblem& problem) override;
  void norm(const NormProblem& problem) override;
  void norm_backward(const NormBackward& problem) override;
  void rotary(const RotaryProblem& problem) override;
  void embedding(const Tensor& ids, const Tensor& table, Tensor& y) override;
  void embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                          Tensor& dtable) override;
  void cross_entropy(const CrossEntropyProblem& problem) override;
  void cross_entropy_backward(const CrossEntropyBackward& problem) override;
  void sample(const SampleProblem& problem) override;
  std::unique_ptr<Reading> optimize(const OptimizerProblem& problem) override;
  void softmax(const Tensor& x, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) override;
  void keep_triangle(const Tensor& x, bool upper, Tensor& y) override;
  void running_sum(const Tensor& x, Tensor& carry, bool reverse, Tensor& y) override;
  void divide_rows(const Tensor& x, const Tensor& by, Tensor& y) override;
  void softmax_features(const FeatureProblem& problem) override;
  void softmax_features_backward(const FeatureBackward& problem) override;
  void attention_forward(const AttentionProblem& problem, const AttentionResults& out) override;
  bool reads_pages(const AttentionProblem& problem, Statistics statistics) override;
  void attention_backward(const AttentionProblem& problem,
                          const AttentionBackward& tensors) override;
  void attention_weights(const AttentionProblem& problem, const AttentionWeights& wanted) override;
  AttentionKernels attention_kernels(const AttentionProblem& problem,
                                     const AttentionOptions& options) override;

  // A product for the library: of matrices in a dtype it multiplies.
  struct Product : MatmulProblem {
    bool adds = false;  // to what is in y, which it rounds once more
  };

  Device device() const { return {DeviceType::cuda, index_}; }
  // Makes this the current device of the calling thread and returns its stream, or the one that a
  // recording of this thread listens to.
  cudaStream_t stream() const;
  // Memory for the time of a call, in the order of the stream.
  template <class T>
  Tensor scratch(std::int64_t count) {
    return Tensor::empty({count * static_cast<std::int64_t>(sizeof(T))}, {DType::u8, device()});
  }
  // The bytes of a host array on the device.
  Tensor upload(std::span<const std::byte> bytes);
  // Queues a copy from the CPU. The bytes have left when this returns, and it does not wait for
  // what the device has still to do.
  void send(void* to, const void* from, std::size_t bytes);
  // Gives memory back once what is queued is done with it.
  void release(void* data);
  // Counters that are zero between kernels: a kernel that uses them leaves them so.
  std::uint32_t* tickets(std::int64_t count);

 private:
  struct Blas;
  struct Outbox;
  struct Inbox;
  class Arriving;
  struct Arena;
  class Graph;
  // Where the calling thread takes memory while it records; null: it does not.
  static Arena*& recording();
  Arena* arena() const;
  cudaStream_t main_stream() const;
  static std::shared_ptr<Inbox> make_inbox();
  std::shared_ptr<Storage> allocate_recorded(std::size_t bytes);
  // False where the library has no way to do it.
  bool product(const Product& problem);
  bool product_of_all(const Product& problem);
  // False where the inner axis had better stay whole.
  bool matmul_by_parts(const MatmulProblem& problem);

  int index_;
  cudaStream_t stream_ = nullptr;
  std::size_t total_memory_ = 0;
  std::unique_ptr<Outbox> outbox_;
  std::shared_ptr<Inbox> inbox_;
  std::mutex first_use_;  // of the next two
  Tensor tickets_;
  std::shared_ptr<Blas> blas_;  // made by the first product
};

// Throws Error with what failed and why. `what` names the operator.
void check_cuda(cudaError_t status, const char* what);
// After a launch.
inline void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

}  // namespace qkv
