// What a warp multiplies by the matrix instructions that every GPU since Ampere has: tiles of rows
// in shared memory (WarpTile), where its lanes read them (LaneReader), and accumulators. halves.cuh
// has all of it for elements of 16 bits, floats.cuh tiles of floats, of which tf32.cuh and
// exact.cuh make products; kernels are written for any.
//
// Of a result [16, 8] lane l holds [e] at row l / 4 + 8 (e / 2), column 2 (l % 4) + e % 2.
#pragma once

#include <cstdint>

namespace qkv::cuda {

// Rows of kSize elements, filled by copies that run in their own time.
template <class T, int kSize>
struct WarpTile;
template <class T, int kSize>
struct LaneReader;

// Accumulators of 16 kBlocks rows and kColumns columns: [block][4 n + e].
template <int kBlocks, int kColumns>
using Accumulators = float[kBlocks][kColumns / 2];

template <int kBlocks, int kColumns>
__device__ void clear(Accumulators<kBlocks, kColumns>& to) {
#pragma unroll
  for (auto& block : to) {
#pragma unroll
    for (float& x : block) x = 0;
  }
}

// Whether columns from 16 c on are all padding of a head of `size`. Asked only where padding may be
// long enough to be worth the question.
template <int kSize>
__device__ bool is_padding(int c, int size) {
  return kSize > 128 && 16 * c >= size;
}

// Copies 16 bytes to shared memory in its own time, or zeros where nothing is `present`.
__device__ inline void copy_later(void* to, const void* from, bool present) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ inline void copy_word_later(float* to, const float* from, bool present) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
               "r"(present ? 4 : 0)
               : "memory");
}
// Copies since the last call are a group; a thread waits for all of its groups but the last few.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLast>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLast) : "memory");
}

// Visits the vectors of 16 bytes of kRows rows that are this thread's: visit(row, vector).
template <int kRows, int kVectors, int kThreads, class Visit>
__device__ void share_vectors(Visit visit) {
  static_assert(kRows * kVectors % kThreads == 0);
#pragma unroll
  for (int n = 0; n < kRows * kVectors / kThreads; ++n) {
    const int e = static_cast<int>(threadIdx.x) + n * kThreads;
    visit(e / kVectors, e % kVectors);
  }
}

}  // namespace qkv::cuda
