// Tensors on their way to the CPU, which somebody waits for later.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/check.h"
#include "cuda/cuda_backend.h"

namespace qkv {

// Memory that the device can write while this thread goes on. It takes long to make, so a place
// that was read is kept for the next one.
struct CudaBackend::Inbox {
  struct Place {
    void* data = nullptr;
    std::size_t bytes = 0;
    cudaEvent_t arrived = nullptr;
  };
  static constexpr std::size_t kSmallest = 4096;

  std::mutex mutex;
  std::vector<Place> unused;

  Place take(std::size_t bytes) {
    const std::scoped_lock lock(mutex);
    const auto fits = [&](const Place& place) { return place.bytes >= bytes; };
    if (const auto found = std::find_if(unused.begin(), unused.end(), fits);
        found != unused.end()) {
      const Place place = *found;
      unused.erase(found);
      return place;
    }
    Place place{.bytes = std::max(bytes, kSmallest)};
    check_cuda(cudaMallocHost(&place.data, place.bytes), "read");
    check_cuda(cudaEventCreateWithFlags(&place.arrived, cudaEventDisableTiming), "read");
    return place;
  }
  // Also before the bytes have arrived: the next ones are queued behind them.
  void give_back(const Place& place) {
    const std::scoped_lock lock(mutex);
    unused.push_back(place);
  }
};

class CudaBackend::Arriving final : public Reading {
 public:
  Arriving(std::shared_ptr<Inbox> inbox, const Tensor& x, cudaStream_t queue)
      : inbox_(std::move(inbox)), shape_(x.shape()), dtype_(x.dtype()), bytes_(bytes_of(x)) {
    place_ = inbox_->take(bytes_);
    try {
      check_cuda(cudaMemcpyAsync(place_.data, x.raw(), bytes_, cudaMemcpyDeviceToHost, queue),
                 "read");
      check_cuda(cudaEventRecord(place_.arrived, queue), "read");
    } catch (...) {
      inbox_->give_back(place_);
      throw;
    }
  }
  ~Arriving() override { inbox_->give_back(place_); }
  Arriving(const Arriving&) = delete;
  Arriving& operator=(const Arriving&) = delete;

  Tensor wait() override {
    check_cuda(cudaEventSynchronize(place_.arrived), "read");
    Tensor here = Tensor::empty(shape_, {dtype_});
    if (bytes_ > 0) std::memcpy(here.raw(), place_.data, bytes_);
    return here;
  }

 private:
  static std::size_t bytes_of(const Tensor& x) {
    return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  }

  std::shared_ptr<Inbox> inbox_;
  Shape shape_;
  DType dtype_;
  std::size_t bytes_;
  Inbox::Place place_;
};

std::shared_ptr<CudaBackend::Inbox> CudaBackend::make_inbox() { return std::make_shared<Inbox>(); }

std::unique_ptr<Reading> CudaBackend::begin_reading(const Tensor& x) {
  check<NotRecordable>(arena() == nullptr, "read: {} {} cannot be recorded; it is read once",
                       x.dtype(), x.shape());
  if (!x.is_contiguous()) {
    Tensor dense = Tensor::empty(x.shape(), {x.dtype(), x.device()});
    copy(x, dense);
    return begin_reading(dense);
  }
  return std::make_unique<Arriving>(inbox_, x, stream());
}

}  // namespace qkv
