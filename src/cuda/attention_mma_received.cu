// What keys receive, by matrix instructions, but for floats (attention_mma_floats.cu).
#include "cuda/attention_mma_received.cuh"

namespace qkv::cuda {

std::int64_t mma_received_bytes(MmaElements elements, std::int64_t size) {
  return dispatch_mma(elements, size,
                      [&]<class T, int kSize>() { return ReceivedPlan<T, kSize>::kBytes; });
}

void mma_received(const AttentionJob& job, const AttentionGrid& grid, MmaElements elements,
                  const RowStatistics& rows, float* to, cudaStream_t stream) {
  if (elements.dtype == DType::bf16) {
    launch_mma_received<device_bf16>(job, grid, rows, to, stream);
  } else if (elements.dtype == DType::f16) {
    launch_mma_received<device_f16>(job, grid, rows, to, stream);
  } else if (elements.tf32) {
    tf32_mma_received(job, grid, rows, to, stream);
  } else {
    exact_mma_received(job, grid, rows, to, stream);
  }
  check_launch("attention statistics");
}

}  // namespace qkv::cuda
