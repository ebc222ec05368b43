// Recording what a thread queues as a CUDA graph, and replaying it. While it records, the thread
// has a stream of its own, so that others may use the device meanwhile. Memory of a recording is
// its own: the graph knows addresses, and these must be free for it each time.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "cuda/cuda_backend.h"

namespace qkv {

// What a recording allocates. What was freed is handed out again to who asks for as much: the
// layers of a model ask for the same, one after the other, and the graph keeps their order.
struct CudaBackend::Arena : std::enable_shared_from_this<Arena> {
  static constexpr std::size_t kChunk = std::size_t{32} << 20, kAlignment = 512;

  CudaBackend& owner;
  cudaStream_t heard = nullptr;  // what is queued here is recorded
  std::vector<void*> chunks{};
  std::byte* next = nullptr;
  std::size_t left = 0;
  std::multimap<std::size_t, void*> unused{};

  explicit Arena(CudaBackend& backend) : owner(backend) {
    check_cuda(cudaStreamCreateWithFlags(&heard, cudaStreamNonBlocking), "record");
  }
  ~Arena() {
    for (void* chunk : chunks) owner.release(chunk);
    static_cast<void>(cudaStreamDestroy(heard));
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(std::size_t bytes) {
    if (const auto found = unused.find(bytes); found != unused.end()) {
      void* data = found->second;
      unused.erase(found);
      return data;
    }
    if (bytes > left) {
      left = std::max(bytes, kChunk);
      void* chunk = nullptr;
      // In the order of the stream that replays use.
      check_cuda(cudaMallocAsync(&chunk, left, owner.main_stream()), "record");
      chunks.push_back(chunk);
      next = static_cast<std::byte*>(chunk);
    }
    void* data = next;
    next += bytes;
    left -= bytes;
    return data;
  }
};

class CudaBackend::Graph final : public Recording {
 public:
  Graph(CudaBackend& backend, std::shared_ptr<Arena> arena, cudaGraph_t graph)
      : backend_(backend), arena_(std::move(arena)) {
    const cudaError_t status = cudaGraphInstantiate(&work_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "record");
  }
  // What was replayed may still run; the driver keeps it until it is done, and so does the order
  // of the stream for its memory.
  ~Graph() override { static_cast<void>(cudaGraphExecDestroy(work_)); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() override { check_cuda(cudaGraphLaunch(work_, backend_.stream()), "replay"); }

 private:
  CudaBackend& backend_;
  std::shared_ptr<Arena> arena_;
  cudaGraphExec_t work_ = nullptr;
};

CudaBackend::Arena*& CudaBackend::recording() {
  static thread_local Arena* of_thread = nullptr;
  return of_thread;
}

CudaBackend::Arena* CudaBackend::arena() const {
  Arena* of_thread = recording();
  return of_thread != nullptr && &of_thread->owner == this ? of_thread : nullptr;
}

cudaStream_t CudaBackend::stream() const {
  const cudaStream_t main = main_stream();
  const Arena* of_thread = arena();
  return of_thread != nullptr ? of_thread->heard : main;
}

std::shared_ptr<Storage> CudaBackend::allocate_recorded(std::size_t bytes) {
  struct Block {
    std::shared_ptr<Arena> arena;
    std::size_t bytes;
  };
  const std::size_t taken = (bytes / Arena::kAlignment + 1) * Arena::kAlignment;
  void* data = arena()->take(taken);
  return std::make_shared<Storage>(
      data, bytes, device(),
      [](void* memory, void* context) {
        const std::unique_ptr<Block> block(static_cast<Block*>(context));
        block->arena->unused.emplace(block->bytes, memory);
      },
      new Block{arena()->shared_from_this(), taken});
}

void CudaBackend::release(void* data) {
  // Errors here mean that the process is going down and the driver with it.
  static_cast<void>(cudaFreeAsync(data, main_stream()));
}

std::unique_ptr<Recording> CudaBackend::record(const std::function<void()>& body) {
  check(recording() == nullptr, "record: this thread is recording something already");
  const auto arena = std::make_shared<Arena>(*this);
  cudaGraph_t graph = nullptr;
  const auto finish = [&] {
    recording() = nullptr;
    return cudaStreamEndCapture(arena->heard, &graph);
  };
  main_stream();  // the device is this one
  check_cuda(cudaStreamBeginCapture(arena->heard, cudaStreamCaptureModeRelaxed), "record");
  recording() = arena.get();
  try {
    body();
  } catch (...) {
    finish();
    cudaGetLastError();  // not an error of the next call
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(finish(), "record");
  return std::make_unique<Graph>(*this, arena, graph);
}

}  // namespace qkv
