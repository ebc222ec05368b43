#include "cuda/backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "core/check.h"
#include "cuda/cuda_backend.h"

namespace qkv {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kOldestCapability = 80;  // Ampere: bf16 in the matrix units

void* take(std::size_t bytes, cudaStream_t stream, const char* what) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocAsync(&data, bytes, stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not an error of the next call
    return nullptr;
  }
  check_cuda(status, what);
  return data;
}

// What a call says that a stream cannot record: one that waits, for example.
bool is_of_capture(cudaError_t status) {
  return status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
}

cudaMemPool_t pool_of(int index) {
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, index), "cuda");
  return pool;
}

void release(void* data, void* backend) { static_cast<CudaBackend*>(backend)->release(data); }

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const char* reason = cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) fail<OutOfMemory>("{}: CUDA says: {}", what, reason);
  if (is_of_capture(status)) fail<NotRecordable>("{}: CUDA says: {}", what, reason);
  fail("{}: CUDA says: {}", what, reason);
}

// Memory the device can fetch from while this thread goes on: bytes for it are put here. It is a
// ring of parts; a part is used again when the copies out of it are done.
struct CudaBackend::Outbox {
  static constexpr std::size_t kParts = 4, kPart = std::size_t{4} << 20, kAlignment = 256;

  std::mutex mutex;
  std::byte* data = nullptr;
  std::array<cudaEvent_t, kParts> left{};
  std::size_t part = 0, used = 0;

  Outbox() {
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, kParts * kPart), "cuda");
    data = static_cast<std::byte*>(memory);
    for (cudaEvent_t& event : left) {
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cuda");
    }
  }
  // Where `bytes` (at most kPart) may be put now.
  std::byte* room(std::size_t bytes, cudaStream_t stream) {
    if (used + bytes > kPart) {
      check_cuda(cudaEventRecord(left[part], stream), "copy");
      part = (part + 1) % kParts;
      check_cuda(cudaEventSynchronize(left[part]), "copy");
      used = 0;
    }
    std::byte* place = data + part * kPart + used;
    used = std::min(kPart, (used + bytes + kAlignment - 1) / kAlignment * kAlignment);
    return place;
  }
};

CudaBackend::~CudaBackend() = default;

CudaBackend::CudaBackend(int index) : index_(index) {
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cuda");
  check(driver > 0, "cuda:{}: no NVIDIA driver is loaded; install one, or use the CPU", index);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    fail("cuda:{}: the driver is too old (it knows CUDA {}.{}, this build uses {}.{}); update it",
         index, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
         CUDART_VERSION % 1000 / 10);
  }
  if (status != cudaSuccess) count = 0;
  cudaGetLastError();
  check(index >= 0 && index < count, "cuda:{}: this machine has {} CUDA devices; use the CPU",
        index, count);
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "cuda");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "cuda");
  check(major * 10 + minor >= kOldestCapability,
        "cuda:{}: the device has compute capability {}.{}, qkv needs {}.{} or newer", index, major,
        minor, kOldestCapability / 10, kOldestCapability % 10);
  check_cuda(cudaSetDevice(index), "cuda");
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cuda");
  // What was freed stays with the process: asking the driver again costs more than a kernel.
  std::uint64_t everything = UINT64_MAX;
  check_cuda(cudaMemPoolSetAttribute(pool_of(index), cudaMemPoolAttrReleaseThreshold, &everything),
             "cuda");
  std::size_t unused = 0;
  check_cuda(cudaMemGetInfo(&unused, &total_memory_), "cuda");
  outbox_ = std::make_unique<Outbox>();
  inbox_ = make_inbox();
}

cudaStream_t CudaBackend::main_stream() const {
  check_cuda(cudaSetDevice(index_), "cuda");
  return stream_;
}

void CudaBackend::synchronize() { check_cuda(cudaStreamSynchronize(stream()), "synchronize"); }

MemoryUse CudaBackend::memory_use() {
  MemoryUse use;
  std::uint64_t bytes = 0;
  check_cuda(cudaMemPoolGetAttribute(pool_of(index_), cudaMemPoolAttrUsedMemCurrent, &bytes),
             "memory_use");
  use.now = bytes;
  check_cuda(cudaMemPoolGetAttribute(pool_of(index_), cudaMemPoolAttrUsedMemHigh, &bytes),
             "memory_use");
  use.peak = bytes;
  use.total = total_memory_;
  return use;
}

void CudaBackend::reset_peak_memory() {
  std::uint64_t zero = 0;  // the pool starts again from what is in use
  check_cuda(cudaMemPoolSetAttribute(pool_of(index_), cudaMemPoolAttrUsedMemHigh, &zero),
             "reset_peak_memory");
}

std::shared_ptr<Storage> CudaBackend::allocate(std::size_t bytes) {
  if (arena() != nullptr) return allocate_recorded(bytes);
  const std::size_t asked = bytes > 0 ? bytes : 1;
  void* data = take(asked, stream(), "allocate");
  if (data == nullptr) {
    // The pool may hold freed memory in pieces that do not fit: give them back and try again.
    check_cuda(cudaStreamSynchronize(stream_), "allocate");
    check_cuda(cudaMemPoolTrimTo(pool_of(index_), 0), "allocate");
    data = take(asked, stream_, "allocate");
  }
  if (data == nullptr) {
    std::size_t unused = 0, all = 0;
    check_cuda(cudaMemGetInfo(&unused, &all), "allocate");
    fail<OutOfMemory>("out of memory: {} bytes on {}, which has {} of {} left", bytes, device(),
                      unused, all);
  }
  return std::make_shared<Storage>(data, bytes, device(), qkv::release, this);
}

Tensor CudaBackend::upload(std::span<const std::byte> bytes) {
  Tensor there = scratch<std::byte>(static_cast<std::int64_t>(bytes.size()));
  if (bytes.empty()) return there;
  send(there.raw(), bytes.data(), bytes.size());
  return there;
}

void CudaBackend::send(void* to, const void* from, std::size_t bytes) {
  check<NotRecordable>(arena() == nullptr,
                       "copy: {} bytes of the CPU cannot be recorded; they may be others next time",
                       bytes);
  const cudaStream_t queue = stream();
  if (bytes <= Outbox::kPart) {
    const std::scoped_lock lock(outbox_->mutex);
    std::byte* place = outbox_->room(bytes, queue);
    std::memcpy(place, from, bytes);
    check_cuda(cudaMemcpyAsync(to, place, bytes, cudaMemcpyHostToDevice, queue), "copy");
    return;
  }
  // From pageable memory: the driver takes the bytes before it returns.
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, queue), "copy");
}

std::uint32_t* CudaBackend::tickets(std::int64_t count) {
  const std::scoped_lock lock(first_use_);
  if (!tickets_.defined() || tickets_.numel() < count) {
    tickets_ = Tensor::zeros({count}, {DType::i32, device()});
  }
  return static_cast<std::uint32_t*>(tickets_.raw());
}

Backend& cuda_backend(int index) {
  check(index >= 0 && index < kMaxDevices, "cuda:{}: no such device", index);
  static std::mutex mutex;
  // Never destroyed: tensors may outlive every static.
  static auto& instances = *new std::array<std::unique_ptr<CudaBackend>, kMaxDevices>;
  const std::scoped_lock lock(mutex);
  auto& instance = instances[static_cast<std::size_t>(index)];
  if (!instance) instance = std::make_unique<CudaBackend>(index);
  return *instance;
}

}  // namespace qkv
