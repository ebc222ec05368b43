// Matrix products of a warpgroup (4 warps) on tiles in shared memory:
// D[64, N] += A[64, 16] B[16, N].
//
// Accumulators: warp w of the warpgroup holds rows 16w .. 16w+15. Lane l holds, of every 8 columns,
// columns c = 2 (l % 4) and c + 1 of rows r = l / 4 and r + 8: d[4 n + 0, 1] and d[4 n + 2, 3] of
// column block n. Two neighbouring blocks, rounded to 16 bits, are exactly an A operand in
// registers: that is how the weights of one product enter the next without leaving the thread.
//
// The products run on their own: `commit` closes a group, `wait<n>` waits until at most n groups
// are under way. Between a product and its wait nobody may touch its accumulators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/tile/barrier.cuh"

namespace qkv::cuda {

// The lane, asked for anew each time: what follows from it takes no register in a loop before,
// where accumulators need them all.
__device__ inline int lane_now() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// A swizzled tile (see tma.cuh) as the tensor cores address it, from element `tile` on.
// Along the contiguous axis a step of 16 elements is 32 bytes within a slab; across it, 8 rows
// are 1024 bytes.
struct TileDescriptor {
  std::uint64_t bits;

  // `slab_bytes`: from one slab to the next; only read when the contiguous axis is M or N.
  __device__ TileDescriptor(const void* tile, int slab_bytes)
      : bits((shared_address(tile) & 0x3ffff) >> 4 | std::uint64_t(slab_bytes >> 4) << 16 |
             std::uint64_t(1024 >> 4) << 32 | std::uint64_t(1) << 62) {}
  __device__ std::uint64_t at(int bytes) const { return bits + (bytes >> 4); }
  // The same, of a product with two such operands: the address fits the lower half, and sums of
  // halves leave the compiler half the instructions between one product and the next.
  __device__ std::uint64_t at_low(int bytes) const {
    return (bits & 0xffffffff00000000u) | (std::uint32_t(bits) + std::uint32_t(bytes >> 4));
  }
};

// Which axis of an operand is contiguous in shared memory: the inner one of the product (k), or
// the one that stays (M of A, N of B).
enum Contiguous { inner = 0, outer = 1 };

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Tells the compiler that these registers may have changed: a read cannot move up past it.
template <int Count>
__device__ void touch(float (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
// Waits until at most `Pending` groups are under way, after which `done` may be read.
template <int Pending, int Count>
__device__ void wgmma_wait(float (&done)[Count]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  touch(done);
}

// The instruction names every accumulator, so its text depends on their number. QKV_NAMES_n and
// QKV_BINDS_n list the first n; the operands after them are numbered by hand in QKV_EACH_WIDTH.
#define QKV_N0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define QKV_N1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define QKV_N2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define QKV_N3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define QKV_N4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define QKV_N5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define QKV_N6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define QKV_N7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define QKV_N8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define QKV_N9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define QKV_N10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define QKV_N11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define QKV_N12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define QKV_N13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define QKV_N14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define QKV_N15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define QKV_B8(i)                                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define QKV_NAMES_32 QKV_N0 "," QKV_N1 "," QKV_N2 "," QKV_N3
#define QKV_BINDS_32 QKV_B8(0), QKV_B8(8), QKV_B8(16), QKV_B8(24)
#define QKV_NAMES_40 QKV_NAMES_32 "," QKV_N4
#define QKV_BINDS_40 QKV_BINDS_32, QKV_B8(32)
#define QKV_NAMES_64 QKV_NAMES_40 "," QKV_N5 "," QKV_N6 "," QKV_N7
#define QKV_BINDS_64 QKV_BINDS_40, QKV_B8(40), QKV_B8(48), QKV_B8(56)
#define QKV_NAMES_96 QKV_NAMES_64 "," QKV_N8 "," QKV_N9 "," QKV_N10 "," QKV_N11
#define QKV_BINDS_96 QKV_BINDS_64, QKV_B8(64), QKV_B8(72), QKV_B8(80), QKV_B8(88)
#define QKV_NAMES_128 QKV_NAMES_96 "," QKV_N12 "," QKV_N13 "," QKV_N14 "," QKV_N15
#define QKV_BINDS_128 QKV_BINDS_96, QKV_B8(96), QKV_B8(104), QKV_B8(112), QKV_B8(120)

// A and B in shared memory.
#define QKV_WGMMA_SHARED(n, r, i0, i1, i2, i3, i4, i5, i6)                               \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2                                     \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." QKV_TYPE "." QKV_TYPE   \
               " {" QKV_NAMES_##r "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";}" \
               : QKV_BINDS_##r                                                           \
               : "l"(a), "l"(b), "r"(accumulate), "n"(int(LayoutA)), "n"(int(LayoutB)))
// A in registers.
#define QKV_WGMMA_REGISTERS(n, r, i0, i1, i2, i3, i4, i5, i6)                                    \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %" #i5                                                      \
      ", 0;\n"                                                                                   \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." QKV_TYPE "." QKV_TYPE " {" QKV_NAMES_##r \
      "}, {%" #i0 ",%" #i1 ",%" #i2 ",%" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";}"                  \
      : QKV_BINDS_##r                                                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(int(LayoutB)))

#define QKV_EACH_WIDTH(instruction)                           \
  if constexpr (N == 64)                                      \
    instruction(64, 32, 32, 33, 34, 35, 36, 37, 38);          \
  else if constexpr (N == 80)                                 \
    instruction(80, 40, 40, 41, 42, 43, 44, 45, 46);          \
  else if constexpr (N == 128)                                \
    instruction(128, 64, 64, 65, 66, 67, 68, 69, 70);         \
  else if constexpr (N == 192)                                \
    instruction(192, 96, 96, 97, 98, 99, 100, 101, 102);      \
  else if constexpr (N == 256)                                \
    instruction(256, 128, 128, 129, 130, 131, 132, 133, 134); \
  else                                                        \
    static_assert(N == 0, "a width that is not in this list");

// d += a b, or d = a b when `accumulate` is 0.
template <class T, Contiguous LayoutA, Contiguous LayoutB, int Count>
__device__ void wgmma(float (&d)[Count], std::uint64_t a, std::uint64_t b, int accumulate) {
  constexpr int N = 2 * Count;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#define QKV_TYPE "bf16"
    QKV_EACH_WIDTH(QKV_WGMMA_SHARED)
#undef QKV_TYPE
  } else {
#define QKV_TYPE "f16"
    QKV_EACH_WIDTH(QKV_WGMMA_SHARED)
#undef QKV_TYPE
  }
}
template <class T, Contiguous LayoutB, int Count>
__device__ void wgmma(float (&d)[Count], const std::uint32_t (&a)[4], std::uint64_t b,
                      int accumulate) {
  constexpr int N = 2 * Count;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#define QKV_TYPE "bf16"
    QKV_EACH_WIDTH(QKV_WGMMA_REGISTERS)
#undef QKV_TYPE
  } else {
#define QKV_TYPE "f16"
    QKV_EACH_WIDTH(QKV_WGMMA_REGISTERS)
#undef QKV_TYPE
  }
}

// Two f32 rounded to 16 bits, the first in the lower half.
template <class T>
__device__ std::uint32_t pack(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

template <class T>
__device__ void unpack(std::uint32_t word, float& low, float& high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000);
  } else {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(word));
    low = both.x;
    high = both.y;
  }
}

// Accumulators of [64, 2 Count] as A operands, one for every 16 columns.
template <class T, int Count>
__device__ void pack_operands(std::uint32_t (&to)[Count / 8][4], const float (&from)[Count]) {
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) to[i / 4][i % 4] = pack<T>(from[2 * i], from[2 * i + 1]);
}
// And back, rounded.
template <class T, int Count>
__device__ void unpack_operands(float (&to)[Count], const std::uint32_t (&from)[Count / 8][4]) {
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) unpack<T>(from[i / 4][i % 4], to[2 * i], to[2 * i + 1]);
}

}  // namespace qkv::cuda
