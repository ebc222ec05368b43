// Matrix products of one warp, D[16, 8] += A[16, 16] B[16, 8], for work too thin for a warpgroup.
// Accumulators and A operands are laid out as in wgmma.cuh, with 16 rows instead of 64.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/tile/barrier.cuh"

namespace qkv::cuda {

// Four 8 x 8 matrices from shared memory; lanes 8m .. 8m+7 name the rows (16 bytes) of matrix m.
// Lane l gets elements 2 (l % 4) and the next of row l / 4 of each; transposed: of column l / 4.
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

// The other way: lane l gives what load_matrices would have given it.
__device__ inline void store_matrices(std::uint32_t row_address, const std::uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row_address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

template <class T>
__device__ void mma(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define QKV_MMA(type)                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    QKV_MMA("bf16");
  } else {
    QKV_MMA("f16");
  }
#undef QKV_MMA
}

// Where 16-byte vector `vector` of row `row` lies in a swizzled tile (tma.cuh) of `rows` rows.
__device__ inline int swizzled(int rows, int row, int vector) {
  return vector / 8 * rows * 128 + row * 128 + ((vector ^ row) % 8) * 16;
}

}  // namespace qkv::cuda
