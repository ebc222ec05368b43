// Recording what the stream is given as a CUDA graph, and replaying it. Memory of a recording is
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
struct CudaBackend::Arena {
  static constexpr std::size_t kChunk = std::size_t{32} << 20, kAlignment = 512;

  CudaBackend& owner;
  cudaStream_t aside = nullptr;  // memory is taken here, while the stream itself is recorded
  std::vector<void*> chunks{};
  std::byte* next = nullptr;
  std::size_t left = 0;
  std::multimap<std::size_t, void*> unused{};
  std::vector<void*> later{};  // of others, to be freed when the recording is done

  explicit Arena(CudaBackend& backend) : owner(backend) {
    check_cuda(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking), "record");
    grow(kChunk);
  }
  ~Arena() {
    for (void* chunk : chunks) owner.release(chunk);
    static_cast<void>(cudaStreamDestroy(aside));
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void grow(std::size_t bytes) {
    void* data = nullptr;
    check_cuda(cudaMallocAsync(&data, bytes, aside), "record");
    chunks.push_back(data);
    check_cuda(cudaStreamSynchronize(aside), "record");
    next = static_cast<std::byte*>(data);
    left = bytes;
  }
  void* take(std::size_t bytes) {
    if (const auto found = unused.find(bytes); found != unused.end()) {
      void* data = found->second;
      unused.erase(found);
      return data;
    }
    if (bytes > left) grow(std::max(bytes, kChunk));
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

std::shared_ptr<Storage> CudaBackend::allocate_recorded(std::size_t bytes) {
  struct Block {
    std::shared_ptr<Arena> arena;
    std::size_t bytes;
  };
  const std::size_t taken = (bytes / Arena::kAlignment + 1) * Arena::kAlignment;
  void* data = arena_->take(taken);
  return std::make_shared<Storage>(
      data, bytes, device(),
      [](void* memory, void* context) {
        const std::unique_ptr<Block> block(static_cast<Block*>(context));
        block->arena->unused.emplace(block->bytes, memory);
      },
      new Block{arena_, taken});
}

void CudaBackend::release(void* data) {
  if (arena_) {
    arena_->later.push_back(data);
    return;
  }
  // Errors here mean that the process is going down and the driver with it.
  static_cast<void>(cudaFreeAsync(data, stream()));
}

std::unique_ptr<Recording> CudaBackend::record(const std::function<void()>& body) {
  check(!arena_, "record: something is being recorded already");
  const cudaStream_t queue = stream();
  const auto arena = std::make_shared<Arena>(*this);
  cudaGraph_t graph = nullptr;
  const auto finish = [&] {
    arena_ = nullptr;
    const cudaError_t status = cudaStreamEndCapture(queue, &graph);
    for (void* data : std::exchange(arena->later, {})) release(data);
    return status;
  };
  check_cuda(cudaStreamBeginCapture(queue, cudaStreamCaptureModeRelaxed), "record");
  arena_ = arena;
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
