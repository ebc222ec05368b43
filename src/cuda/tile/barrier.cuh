// How warps wait for each other and for the copy engine: mbarriers in shared memory, rings of
// stages built from them, and the numbered barriers of a block.
#pragma once

#include <cstdint>

namespace qkv::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// How many arrivals a warp makes where it arrives as one (Barrier::arrive_as_warp).
// compute-sanitizer's racecheck does not know that lanes wait for each other in __syncwarp: one
// lane that arrives for all of them is reported as a hazard of what the others read or wrote. Built
// for it (QKV_RACECHECK), every lane arrives for itself.
#ifdef QKV_RACECHECK
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif

// A phase ends when `count` arrivals and all announced bytes have come. Whoever waits names the
// phase by its parity: phase 0 is the first, and waiting for parity 1 on a new barrier passes.
struct Barrier {
  std::uint64_t word;

  __device__ void init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)),
                 "r"(count));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word))
                 : "memory");
  }
  // Called by all lanes of a warp, in step. What they read and wrote comes before it if a
  // __syncwarp lies between; what only tensor cores read, which finish for a warp at once, needs
  // none.
  __device__ void arrive_as_warp() {
    if (kArrivalsOfWarp > 1 || threadIdx.x % 32 == 0) arrive();
  }
  // Arrives and announces bytes that the copy engine will bring in this phase.
  __device__ void expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)),
        "r"(bytes)
        : "memory");
  }
  __device__ void wait(std::uint32_t parity) {
    std::uint32_t done;
    do {
      asm volatile(
          "{.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(shared_address(&word)), "r"(parity)
          : "memory");
    } while (!done);
  }
  // Whether it would not have to wait.
  __device__ bool has_passed(std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(shared_address(&word)), "r"(parity)
        : "memory");
    return done;
  }
};

// Makes initialised barriers visible to the copy engine.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Ordinary shared-memory stores of this thread before, tensor cores and copy engine after.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Where one party stands in a ring of stages.
template <int Stages>
struct Turn {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ void next() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ Turn following() const {
    Turn turn = *this;
    turn.next();
    return turn;
  }
};

// Stages that a producer fills and consumers empty. The producer waits for `empty` with the
// parity of the phase before (free at first), the consumers for `full` with their own.
template <int Stages>
struct Ring {
  Barrier full[Stages], empty[Stages];

  __device__ void init(int producers, int consumers) {
    for (int s = 0; s < Stages; ++s) {
      full[s].init(producers);
      empty[s].init(consumers);
    }
  }
  __device__ void wait_full(Turn<Stages> turn) { full[turn.stage].wait(turn.phase); }
  __device__ void wait_empty(Turn<Stages> turn) { empty[turn.stage].wait(turn.phase ^ 1); }
};

// The numbered barriers of a block (0 is __syncthreads). `threads` counts those that wait and
// those that only arrive.
__device__ inline void named_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int Registers>
__device__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace qkv::cuda
