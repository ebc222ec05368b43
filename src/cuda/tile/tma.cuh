// The bulk copy engine: boxes of a strided tensor to shared memory, 128-byte swizzled (bytes: 64).
//
// A tile of R rows and D columns (16-bit elements) lies in shared memory as D/64 slabs of [R][64]:
// one row of a slab is 128 bytes, the width of the swizzle, and each slab is one copy. Rows and
// columns outside the tensor arrive as zeros, which pads any head size to a multiple of 64.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/tile/barrier.cuh"
#include "qkv/dtype.h"
#include "qkv/error.h"

namespace qkv::cuda {

inline constexpr int kSlab = 64;  // columns

// A [batches, heads, rows, columns] view whose last axis is contiguous; strides in elements.
struct TensorView {
  const void* data = nullptr;
  std::int64_t batches = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

// What a tensor map asks of a view: 16-byte steps from a 16-byte boundary.
inline bool can_map(const TensorView& x, std::int64_t item = 2) {
  const auto aligned = [item](std::int64_t elements) {
    return elements * item % 16 == 0 && elements >= 0;
  };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && aligned(x.row_stride) &&
         aligned(x.head_stride) && aligned(x.batch_stride);
}

// The map of boxes of `box_rows` rows and one slab. An empty view gives a map never to be used.
inline CUtensorMap make_tensor_map(const TensorView& x, DType dtype, int box_rows) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                                12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
      throw Error("cuda: this driver has no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  CUtensorMap map{};
  if (x.batches * x.heads * x.rows * x.columns == 0) return map;
  // An axis of extent 1 may have any stride: its step is never taken.
  const auto item = static_cast<std::int64_t>(size_of(dtype));
  const auto bytes = [item](std::int64_t stride, std::int64_t extent) {
    return static_cast<cuuint64_t>(extent == 1 ? 16 : item * stride);
  };
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(x.columns),
                                 static_cast<cuuint64_t>(x.rows), static_cast<cuuint64_t>(x.heads),
                                 static_cast<cuuint64_t>(x.batches)};
  const cuuint64_t strides[3] = {bytes(x.row_stride, x.rows), bytes(x.head_stride, x.heads),
                                 bytes(x.batch_stride, x.batches)};
  const cuuint32_t box[4] = {kSlab, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status = encode(
      &map,
      item == 1              ? CU_TENSOR_MAP_DATA_TYPE_UINT8
      : dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<void*>(x.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      item == 1 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw Error("cuda: cuTensorMapEncodeTiled failed with " + std::to_string(int(status)));
  return map;
}

// How long L2 should hold what a copy brings: rows of one block are read once, keys by many.
enum class Keep : std::uint64_t { briefly = 0x12f0000000000000, long_time = 0x14f0000000000000 };

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// One slab: rows from `row` on, columns from `column` on. Completes on `barrier`.
__device__ inline void load_slab(void* to, const CUtensorMap& map, Barrier& barrier, int column,
                                 int row, int head, int batch, Keep keep) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier.word)), "r"(column), "r"(row), "r"(head), "r"(batch),
      "l"(static_cast<std::uint64_t>(keep))
      : "memory");
}

// The other way: what lies within the tensor of one slab of shared memory. Joins this thread's
// group, which `commit_stores` closes.
__device__ inline void store_slab(const void* from, const CUtensorMap& map, int column, int row,
                                  int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(shared_address(from)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Contiguous bytes, a multiple of 16 from a 16-byte boundary. Completes on `barrier`.
__device__ inline void load_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier.word))
      : "memory");
}
// Floats in shared memory over floats in global memory, or added to them; a group of its own.
__device__ inline void store_floats(float* to, const float* from, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}
__device__ inline void add_floats(float* to, const float* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}
// Waits until what this thread sent has left shared memory, or (`landed`) has arrived.
template <bool landed>
__device__ void wait_sent() {
  if constexpr (landed) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  } else {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

// All slabs of a tile of `Rows` rows and `Columns` columns.
template <int Rows, int Columns, class T>
__device__ void load_tile(T* to, const CUtensorMap& map, Barrier& barrier, int row, int head,
                          int batch, Keep keep) {
  barrier.expect(Rows * Columns * int(sizeof(T)));
#pragma unroll
  for (int slab = 0; slab < Columns / kSlab; ++slab)
    load_slab(to + slab * Rows * kSlab, map, barrier, slab * kSlab, row, head, batch, keep);
}

}  // namespace qkv::cuda
