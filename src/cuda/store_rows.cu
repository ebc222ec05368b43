// Rows to a place that the device knows: few of them, so an element at a time will do.
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

struct Place {
  const std::int64_t* at;
  std::int64_t rows, room, stride;  // of data: rows it gets, rows it has, elements of a row
};

// The walk is over x and the first rows of data.
template <class Bits>
__global__ void store_rows_kernel(const Bits* x, Bits* data, Walk<2> walk, std::int64_t count,
                                  Place place) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t first = *place.at;
  if (i >= count || first < 0 || first > place.room - place.rows) return;
  std::int64_t at[2];
  walk.offsets(i, at);
  data[at[1] + first * place.stride] = x[at[0]];
}

}  // namespace
}  // namespace cuda

void CudaBackend::store_rows(const Tensor& x, const Tensor& at, Tensor& data) {
  if (x.numel() == 0 || x.size(2) > data.size(2)) return;
  const std::int64_t strides[] = {data.stride(0), data.stride(1), data.stride(2), data.stride(3)};
  const Tensor front = data.view(x.shape(), strides, 0);
  const cuda::Walk<2> walk = cuda::make_walk<2>(x.shape(), {&x, &front});
  const cuda::Place place{cuda::pointer<const std::int64_t>(at), x.size(2), data.size(2),
                          data.stride(2)};
  const auto run = [&]<class Bits>() {
    cuda::store_rows_kernel<<<cuda::blocks_for(x.numel()), cuda::kThreads, 0, stream()>>>(
        static_cast<const Bits*>(x.raw()), static_cast<Bits*>(data.raw()), walk, x.numel(), place);
  };
  switch (size_of(x.dtype())) {
    case 1: run.operator()<std::uint8_t>(); break;
    case 2: run.operator()<std::uint16_t>(); break;
    case 4: run.operator()<std::uint32_t>(); break;
    default: run.operator()<std::uint64_t>(); break;
  }
  check_launch("store_rows");
}

}  // namespace qkv
