// Features of bf16 rows in one pass: a warp projects 16 rows on all directions by matrix
// instructions, and exponents never reach memory. Where they are needed twice (for the largest, and
// relative to it) they are computed twice.
//
// Directions are f32. As a sum of two bf16 they keep 16 bits; products of bf16 are exact.
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"
#include "cuda/features.h"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/softmax.cuh"

namespace qkv::cuda {
namespace {

constexpr int kWarps = 8, kRows = 16;  // rows of a warp at a time
constexpr int kGroup = 32;             // features at a time
// Elements after a row of directions in shared memory, so that what a warp reads at once lies in
// different banks; the same for their transpose.
constexpr int kPad = 8, kTurnedPad = 6;

enum class Pass { by_row, find_top, by_top };

struct FusedJob {
  std::int64_t rows, length;
  int features;
  float half_scale, share;
  const device_bf16* x;
  const float* directions;
  float* top;  // [G]: of find_top the room, of by_top what exponents are relative to
  device_bf16* y;
};

// Row `at` of a group of 32 in shared memory holds this feature of the group: then the four tiles
// of 8 give lane l the features 8 (l % 4) .. 8 (l % 4) + 7, which it stores at once.
__device__ int feature_at(int at) { return at % 8 / 2 * 8 + at / 8 * 2 + at % 2; }

template <int kSize>
__device__ void load_directions(const FusedJob& job, device_bf16* high, device_bf16* low) {
  for (int i = threadIdx.x; i < job.features * kSize; i += blockDim.x) {
    const int row = i / kSize, d = i % kSize;
    const int feature = row / kGroup * kGroup + feature_at(row % kGroup);
    const float value = job.directions[feature * kSize + d];
    const device_bf16 rounded = __float2bfloat16_rn(value);
    high[row * (kSize + kPad) + d] = rounded;
    low[row * (kSize + kPad) + d] = __float2bfloat16_rn(value - __bfloat162float(rounded));
  }
}

__device__ float low_half(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float high_half(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ std::uint32_t as_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Floats order like integers where positive, the other way round where negative.
__device__ void raise_to(float* at, float value) {
  if (value >= 0) {
    atomicMax(reinterpret_cast<int*>(at), __float_as_int(value + 0.0f));  // no negative zero
  } else {
    atomicMin(reinterpret_cast<unsigned*>(at), __float_as_uint(value));
  }
}

// 16 rows of x as operands: lane l has rows l / 4 and l / 4 + 8. Rows past the end are 0.
template <int kSize>
struct RowsOfX {
  std::uint32_t a[kSize / 16][4];

  __device__ RowsOfX(const device_bf16* x, std::int64_t first, std::int64_t rows) {
    const int lane = threadIdx.x % 32;
    const std::int64_t row = first + lane / 4;
    const auto pair = [&](std::int64_t r, int d) {
      return r < rows ? *reinterpret_cast<const std::uint32_t*>(x + r * kSize + d) : 0u;
    };
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      const int d = k * 16 + lane % 4 * 2;
      a[k][0] = pair(row, d);
      a[k][1] = pair(row + 8, d);
      a[k][2] = pair(row, d + 8);
      a[k][3] = pair(row + 8, d + 8);
    }
  }
  // |x|^2 of both rows.
  __device__ void squares(float (&of)[2]) const {
    of[0] = of[1] = 0;
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float u = low_half(a[k][i]), v = high_half(a[k][i]);
        of[i % 2] += u * u + v * v;
      }
    }
    of[0] = quad_sum(of[0]);
    of[1] = quad_sum(of[1]);
  }
};

// The exponents of a group of 32 features: of row i those of lane l are group + 8 (l % 4) + 0 .. 7.
template <int kSize>
__device__ void project(const RowsOfX<kSize>& x, const device_bf16* high, const device_bf16* low,
                        int group, float (&to)[2][8]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    float sums[4] = {0, 0, 0, 0};
    const int at = (group + tile * 8 + lane / 4) * (kSize + kPad) + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      const auto* l = reinterpret_cast<const std::uint32_t*>(low + at + k * 16);
      const auto* h = reinterpret_cast<const std::uint32_t*>(high + at + k * 16);
      mma<device_bf16>(sums, x.a[k], l[0], l[4]);
      mma<device_bf16>(sums, x.a[k], h[0], h[4]);
    }
    to[0][tile * 2] = sums[0];
    to[0][tile * 2 + 1] = sums[1];
    to[1][tile * 2] = sums[2];
    to[1][tile * 2 + 1] = sums[3];
  }
}

template <int kSize>
struct Directions {
  const device_bf16 *high, *low;
  int features;

  // The largest exponent of both rows.
  __device__ void largest(const RowsOfX<kSize>& x, float (&of)[2]) const {
    float exponents[2][8];
    of[0] = of[1] = -INFINITY;
    for (int group = 0; group < features; group += kGroup) {
      project(x, high, low, group, exponents);
      for (int i = 0; i < 8; ++i) {
        of[0] = fmaxf(of[0], exponents[0][i]);
        of[1] = fmaxf(of[1], exponents[1][i]);
      }
    }
    of[0] = quad_max(of[0]);
    of[1] = quad_max(of[1]);
  }
  // y = exp(exponent - relative) * share, of the rows that there are.
  __device__ void store(const RowsOfX<kSize>& x, const FusedJob& job, std::int64_t first,
                        const float (&relative)[2]) const {
    const int lane = threadIdx.x % 32;
    float exponents[2][8];
    for (int group = 0; group < features; group += kGroup) {
      project(x, high, low, group, exponents);
      for (int i = 0; i < 2; ++i) {
        const std::int64_t row = first + lane / 4 + i * 8;
        if (row >= job.rows) continue;
        Pack16<device_bf16> out;
        for (int n = 0; n < 8; ++n) {
          out.values[n] = __float2bfloat16_rn(expf(exponents[i][n] - relative[i]) * job.share);
        }
        device_bf16* to = job.y + row * features + group + lane % 4 * 8;
        *reinterpret_cast<Pack16<device_bf16>*>(to) = out;
      }
    }
  }
};

template <int kSize, Pass kPass>
__global__ void __launch_bounds__(kWarps * 32) features_kernel(FusedJob job) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* high = reinterpret_cast<device_bf16*>(shared);
  device_bf16* low = high + job.features * (kSize + kPad);
  load_directions<kSize>(job, high, low);
  __syncthreads();
  const Directions<kSize> directions{high, low, job.features};
  const int lane = threadIdx.x % 32;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps * kRows;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kRows;
       first < job.rows; first += step) {
    const RowsOfX<kSize> x(job.x, first, job.rows);
    float relative[2] = {0, 0}, squares[2];
    if constexpr (kPass != Pass::by_top) directions.largest(x, relative);
    if constexpr (kPass != Pass::by_row) {
      x.squares(squares);
      for (int i = 0; i < 2; ++i) {
        const std::int64_t row = first + lane / 4 + i * 8;
        if (row >= job.rows) continue;
        float* top = job.top + row / job.length;
        if constexpr (kPass == Pass::by_top) {
          relative[i] = *top + job.half_scale * squares[i];
        } else if (lane % 4 == 0) {
          // A look first: most rows do not raise it.
          const float value = relative[i] - job.half_scale * squares[i];
          if (value > *static_cast<volatile float*>(top)) raise_to(top, value);
        }
      }
    }
    if constexpr (kPass != Pass::find_top) directions.store(x, job, first, relative);
  }
}

__global__ void move_tops_kernel(float* tops, float* decay, const float* next,
                                 std::int64_t groups) {
  const std::int64_t g = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (g >= groups) return;
  decay[g] = isinf(tops[g]) ? 0.0f : expf(tops[g] - next[g]);
  tops[g] = next[g];
}

struct BackwardJob {
  std::int64_t rows;
  int features;
  float scale;
  const device_bf16 *x, *y, *dy;
  const float* directions;
  device_bf16* dx;
};

// dx = (dy y) w - scale x sum(dy y). The order of features within a group of 32 is that in which a
// lane reads 8 of them at once: sums do not mind.
template <int kSize>
__global__ void __launch_bounds__(kWarps * 32) features_backward_kernel(BackwardJob job) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* turned = reinterpret_cast<device_bf16*>(shared);  // [kSize][features + kTurnedPad]
  const int apart = job.features + kTurnedPad, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < job.features * kSize; i += blockDim.x) {
    turned[i % kSize * apart + i / kSize] = __float2bfloat16_rn(job.directions[i]);
  }
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps * kRows;
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kRows;
       first < job.rows; first += step) {
    float sums[kSize / 8][4] = {}, totals[2] = {0, 0};
    for (int group = 0; group < job.features; group += kGroup) {
      std::uint32_t d[2][4];  // pairs of dy y, by row
      for (int i = 0; i < 2; ++i) {
        const std::int64_t row = first + lane / 4 + i * 8;
        uint4 y{0, 0, 0, 0}, dy{0, 0, 0, 0};
        if (row < job.rows) {
          const std::int64_t at = row * job.features + group + lane % 4 * 8;
          y = *reinterpret_cast<const uint4*>(job.y + at);
          dy = *reinterpret_cast<const uint4*>(job.dy + at);
        }
        const std::uint32_t ys[4] = {y.x, y.y, y.z, y.w}, dys[4] = {dy.x, dy.y, dy.z, dy.w};
        for (int n = 0; n < 4; ++n) {
          const float u = low_half(ys[n]) * low_half(dys[n]);
          const float v = high_half(ys[n]) * high_half(dys[n]);
          totals[i] += u + v;
          d[i][n] = as_pair(u, v);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t a[4] = {d[0][half * 2], d[1][half * 2], d[0][half * 2 + 1],
                                    d[1][half * 2 + 1]};
#pragma unroll
        for (int tile = 0; tile < kSize / 8; ++tile) {
          const auto* b = reinterpret_cast<const std::uint32_t*>(
              turned + (tile * 8 + lane / 4) * apart + group + lane % 4 * 8 + half * 4);
          mma<device_bf16>(sums[tile], a, b[0], b[1]);
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      const float total = job.scale * quad_sum(totals[i]);
      const std::int64_t row = first + lane / 4 + i * 8;
      if (row >= job.rows) continue;
      for (int tile = 0; tile < kSize / 8; ++tile) {
        const std::int64_t at = row * kSize + tile * 8 + lane % 4 * 2;
        const std::uint32_t x = *reinterpret_cast<const std::uint32_t*>(job.x + at);
        *reinterpret_cast<std::uint32_t*>(job.dx + at) = as_pair(
            sums[tile][i * 2] - total * low_half(x), sums[tile][i * 2 + 1] - total * high_half(x));
      }
    }
  }
}

// Blocks enough to fill the device; each takes the directions into its shared memory once.
template <class Kernel, class Job>
void launch(Kernel kernel, const Job& job, std::int64_t shared, cudaStream_t stream) {
  int device = 0, processors = 1, per_processor = 1;
  check_cuda(cudaGetDevice(&device), "features");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "features");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)),
             "features");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kWarps * 32,
                                                           static_cast<std::size_t>(shared)),
             "features");
  const std::int64_t tiles = (job.rows + kWarps * kRows - 1) / (kWarps * kRows);
  const std::int64_t blocks =
      std::min<std::int64_t>(tiles, std::int64_t{processors} * std::max(1, per_processor));
  kernel<<<static_cast<unsigned>(blocks), kWarps * 32, static_cast<std::size_t>(shared), stream>>>(
      job);
  check_launch("features");
}

std::int64_t forward_shared(std::int64_t features, std::int64_t size) {
  return 2 * features * (size + kPad) * static_cast<std::int64_t>(sizeof(device_bf16));
}

template <class F>
void dispatch_size(std::int64_t size, F&& f) {
  switch (size) {
    case 32: return f.template operator()<32>();
    case 64: return f.template operator()<64>();
    default: return f.template operator()<128>();
  }
}

}  // namespace

bool features_fit(const Tensor& x, std::int64_t features) {
  const std::int64_t size = x.size(-1);
  int device = 0, most = 0;
  check_cuda(cudaGetDevice(&device), "features");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "features");
  return x.dtype() == DType::bf16 && (size == 32 || size == 64 || size == 128) &&
         features % kGroup == 0 && forward_shared(features, size) <= most && is_aligned(x.raw());
}

void fused_features(const FeatureProblem& p, const Tensor& next, cudaStream_t stream) {
  FusedJob job{.rows = p.x.size(0) * p.x.size(1),
               .length = p.x.size(1),
               .features = static_cast<int>(p.y.size(2)),
               .half_scale = p.half_scale,
               .share = 1 / std::sqrt(static_cast<float>(p.y.size(2))),
               .x = pointer<const device_bf16>(p.x),
               .directions = pointer<const float>(p.directions),
               .top = pointer<float>(next),
               .y = pointer<device_bf16>(p.y)};
  const std::int64_t shared = forward_shared(p.y.size(2), p.x.size(2)), groups = p.x.size(0);
  dispatch_size(p.x.size(2), [&]<int kSize>() {
    if (!p.top.defined()) return launch(features_kernel<kSize, Pass::by_row>, job, shared, stream);
    check_cuda(cudaMemcpyAsync(job.top, p.top.raw(), groups * sizeof(float),
                               cudaMemcpyDeviceToDevice, stream),
               "features");
    launch(features_kernel<kSize, Pass::find_top>, job, shared, stream);
    move_tops_kernel<<<blocks_for(groups), kThreads, 0, stream>>>(
        pointer<float>(p.top), pointer<float>(p.decay), job.top, groups);
    launch(features_kernel<kSize, Pass::by_top>, job, shared, stream);
  });
}

void fused_features_backward(const FeatureBackward& p, cudaStream_t stream) {
  const BackwardJob job{.rows = p.x.size(0) * p.x.size(1),
                        .features = static_cast<int>(p.y.size(2)),
                        .scale = p.scale,
                        .x = pointer<const device_bf16>(p.x),
                        .y = pointer<const device_bf16>(p.y),
                        .dy = pointer<const device_bf16>(p.dy),
                        .directions = pointer<const float>(p.directions),
                        .dx = pointer<device_bf16>(p.dx)};
  dispatch_size(p.x.size(2), [&]<int kSize>() {
    launch(features_backward_kernel<kSize>, job,
           std::int64_t{kSize} * (job.features + kTurnedPad) *
               static_cast<std::int64_t>(sizeof(device_bf16)),
           stream);
  });
}

}  // namespace qkv::cuda
