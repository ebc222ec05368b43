// An id of each row of logits, which stay where they are: a block per row goes over it a few times.
// Weights are whole numbers (core/sampling.h), so sums may be made in any order. Nothing is sorted:
// which rank is the last that top_k or top_p keeps is narrowed down by histograms.
#include <climits>

#include "core/sampling.h"
#include "cuda/cuda_backend.h"
#include "cuda/elements.cuh"

namespace qkv {
namespace cuda {
namespace {

constexpr int kBlock = 1024, kBlockWarps = kBlock / 32;
constexpr int kBins = 2 * kBlock, kBinBits = 11;
constexpr int kBinsPerBit = kBins / kWeightBits;  // of halving weights
constexpr unsigned kAll = 0xffffffffu;

struct SampleJob {
  const float* logits;
  const std::int64_t* draws;
  std::int64_t* ids;
  int classes;
  double rate, floor, top_p;
  std::int64_t top_k;
};

struct Room {
  std::uint64_t bins[kBins];
  std::uint64_t warps[kBlockWarps];
  std::uint64_t answer[2];
};

// What is kept: greater ranks than `rank`, and of that rank ids up to `last`.
struct Cut {
  std::uint32_t rank = 0;
  int last = INT_MAX;
};

struct Row {
  const float* logits;
  int count;
  float best = 0;
  double rate, floor;  // floor: of logits
  Cut cut{};

  // How far below the likeliest, in halvings of its weight; far away where nothing may be chosen.
  __device__ double distance(int i, float logit) const {
    const std::uint32_t rank = rank_of(logit);
    const bool kept = rank > cut.rank || (rank == cut.rank && i <= cut.last);
    if (!kept || !(logit >= floor)) return 2 * kWeightBits;
    return (static_cast<double>(best) - static_cast<double>(logit)) * rate;
  }
  __device__ std::uint64_t weight(int i) const { return weight_at(distance(i, logits[i])); }
};

// Calls f(i, logit) for elements [0, count) rounded up to whole rounds of the block, so that all
// threads of a warp come along; logits beyond the end are -inf. Four loads are under way at a time.
template <class F>
__device__ void for_each(const Row& row, F&& f) {
  for (int base = 0; base < row.count; base += 4 * kBlock) {
    float values[4];
    for (int k = 0; k < 4; ++k) {
      const int i = base + k * kBlock + static_cast<int>(threadIdx.x);
      values[k] = i < row.count ? row.logits[i] : -INFINITY;
    }
    for (int k = 0; k < 4; ++k) f(base + k * kBlock + static_cast<int>(threadIdx.x), values[k]);
  }
}

__device__ std::uint64_t warp_sum(std::uint64_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}
// The sum over the lanes before this one.
__device__ std::uint64_t sum_before_lane(std::uint64_t value) {
  std::uint64_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const std::uint64_t other = __shfl_up_sync(kAll, sum, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) sum += other;
  }
  return sum - value;
}
// The sum over the threads before this one.
__device__ std::uint64_t sum_before(std::uint64_t value, Room& room) {
  const std::uint64_t before = sum_before_lane(value);
  __syncthreads();  // the room may still be read from the last time
  if (threadIdx.x % 32 == 31) room.warps[threadIdx.x / 32] = before + value;
  __syncthreads();
  if (threadIdx.x < 32) room.warps[threadIdx.x] = sum_before_lane(room.warps[threadIdx.x]);
  __syncthreads();
  return before + room.warps[threadIdx.x / 32];
}

// The greatest over the block.
__device__ std::uint64_t block_largest(std::uint64_t value, Room& room) {
  for (int step = 16; step > 0; step /= 2) {
    value = max(value, __shfl_xor_sync(kAll, value, step));
  }
  if (threadIdx.x % 32 == 0) room.warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = room.warps[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) {
    value = max(value, __shfl_xor_sync(kAll, value, step));
  }
  __syncthreads();
  return value;
}

// Adds to a bin; bin < 0: nothing. A warp whose lanes all have one bin (equal logits) adds once.
__device__ void add_to_bin(Room& room, int bin, std::uint64_t amount) {
  int alike = 0;
  __match_all_sync(kAll, bin, &alike);
  if (alike != 0) {
    if (bin < 0) return;
    amount = warp_sum(amount);
    if (threadIdx.x % 32 != 0) return;
  }
  if (bin < 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&room.bins[bin]), amount);
}

// The bin in which the sum of the bins reaches `wanted`, and the sum of those before it.
struct Bin {
  int index;
  std::uint64_t before, inside;
};
__device__ Bin reach(std::uint64_t wanted, Room& room) {
  const int first = 2 * static_cast<int>(threadIdx.x);
  const std::uint64_t a = room.bins[first], b = room.bins[first + 1];
  const std::uint64_t before = sum_before(a + b, room);
  if (before < wanted && before + a + b >= wanted) {
    const bool second = before + a < wanted;
    room.answer[0] = static_cast<std::uint64_t>(first + (second ? 1 : 0));
    room.answer[1] = before + (second ? a : 0);
  }
  __syncthreads();
  const auto index = static_cast<int>(room.answer[0]);
  return {index, room.answer[1], room.bins[index]};
}

// The i in [0, count) at which the running sum of f(i) passes place(sum of all).
template <class F, class Place>
__device__ int find(int count, F&& f, Place&& place, Room& room) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int span = (count + kBlockWarps - 1) / kBlockWarps;
  std::uint64_t sum = 0;
  const int stop = min(count, (warp + 1) * span);
#pragma unroll 8
  for (int i = warp * span + lane; i < stop; i += 32) sum += f(i);
  sum = warp_sum(sum);
  const std::uint64_t before = sum_before(lane == 0 ? sum : 0, room);
  if (threadIdx.x == kBlock - 1) room.answer[0] = before;  // lane 31 of the last warp: of all
  __syncthreads();
  std::uint64_t left = place(room.answer[0]);
  __syncthreads();
  if (lane == 0 && before <= left && left < before + sum) {
    room.answer[0] = static_cast<std::uint64_t>(warp);
    room.answer[1] = before;
  }
  __syncthreads();
  // That span again, in pieces of one thread each.
  const int begin = static_cast<int>(room.answer[0]) * span, end = min(count, begin + span);
  left -= room.answer[1];
  const int each = (end - begin + kBlock - 1) / kBlock;
  const int from = begin + static_cast<int>(threadIdx.x) * each, to = min(end, from + each);
  sum = 0;
  for (int i = from; i < to; ++i) sum += f(i);
  std::uint64_t reached = sum_before(sum, room);
  if (reached <= left && left < reached + sum) {
    int i = from;
    while (reached + f(i) <= left) reached += f(i++);
    room.answer[0] = static_cast<std::uint64_t>(i);
  }
  __syncthreads();
  const auto found = static_cast<int>(room.answer[0]);
  __syncthreads();
  return found;
}

// Cuts a row after the likeliest whose measure(distance) together reach wanted(sum of all); 0 of
// it cuts nothing. First by distance, in which logits are spread out, then by the bits of the rank.
template <class Measure, class Wanted>
__device__ Cut cut_after(const Row& row, Measure&& measure, Wanted&& wanted, Room& room) {
  const auto distance_bin = [](double distance) {
    return has_weight(distance) ? static_cast<int>(distance * kBinsPerBit) : -1;
  };
  std::uint64_t left = 0;
  std::uint32_t rank = 0;
  Bin bin{};
  int near = 0;  // the bin of the distance
  for (int level = 0, shift = 32; level < 4; ++level) {
    const int bits = min(kBinBits, shift);
    if (level > 0) shift -= bits;
    for (int i = threadIdx.x; i < kBins; i += kBlock) room.bins[i] = 0;
    __syncthreads();
    for_each(row, [&](int i, float logit) {
      const double distance = row.distance(i, logit);
      int at = distance_bin(distance);
      if (level > 0) {
        const std::uint32_t own = rank_of(logit);
        const bool inside = at == near && (level == 1 || own >> (shift + bits) == rank);
        at = inside ? (1 << bits) - 1 - static_cast<int>(own >> shift & ((1u << bits) - 1)) : -1;
      }
      add_to_bin(room, at, at < 0 ? 0 : measure(distance));
    });
    __syncthreads();
    if (level == 0) {
      const std::uint64_t own = room.bins[2 * threadIdx.x] + room.bins[2 * threadIdx.x + 1];
      const std::uint64_t before = sum_before(own, room);
      if (threadIdx.x == kBlock - 1) room.answer[0] = before + own;
      __syncthreads();
      left = wanted(room.answer[0]);
      __syncthreads();
      if (left == 0) return row.cut;
    }
    bin = reach(left, room);
    left -= bin.before;
    if (level == 0) {
      near = bin.index;
    } else {
      rank = rank << bits | static_cast<std::uint32_t>((1 << bits) - 1 - bin.index);
    }
    __syncthreads();
  }
  // Of equal logits as many as are needed, from the lowest id on.
  Cut cut{rank, row.cut.rank == rank ? row.cut.last : INT_MAX};
  if (bin.inside == left) return cut;
  const auto counts = [&](int i) {
    const float logit = row.logits[i];
    const bool is_one = rank_of(logit) == rank && (row.cut.rank != rank || i <= row.cut.last);
    return is_one ? measure(row.distance(i, logit)) : 0;
  };
  cut.last = find(
      row.count, counts, [&](std::uint64_t) { return left - 1; }, room);
  return cut;
}

__global__ void __launch_bounds__(kBlock) sample_kernel(SampleJob job) {
  __shared__ Room room;
  Row row{job.logits + std::int64_t{blockIdx.x} * job.classes, job.classes, 0, job.rate, -INFINITY};
  // The greatest rank, and of its ids the lowest.
  std::uint64_t top = 0;
  for_each(row, [&](int i, float logit) {
    if (i >= row.count) return;
    const std::uint64_t one = std::uint64_t{rank_of(logit)} << 32 | (UINT32_MAX - std::uint32_t(i));
    top = max(top, one);
  });
  top = block_largest(top, room);
  std::int64_t& id = job.ids[blockIdx.x];
  const auto best = static_cast<int>(UINT32_MAX - static_cast<std::uint32_t>(top));
  if (!is_finite_rank(static_cast<std::uint32_t>(top >> 32)) || job.rate == 0) {
    const bool is_number = is_finite_rank(static_cast<std::uint32_t>(top >> 32));
    if (threadIdx.x == 0) id = is_number ? best : -1;
    return;
  }
  row.best = row.logits[best];
  if (job.top_k > 0) {
    const auto most = static_cast<std::uint64_t>(job.top_k);
    row.cut = cut_after(
        row, [](double) { return std::uint64_t{1}; },
        [&](std::uint64_t count) { return most < count ? most : 0; }, room);
  }
  if (job.top_p < 1) {
    row.cut = cut_after(
        row, [](double distance) { return weight_at(distance); },
        [&](std::uint64_t total) { return share_of(total, job.top_p); }, room);
  }
  row.floor = row.best + job.floor;  // min_p, of what the others left
  const auto draw = static_cast<std::uint64_t>(job.draws[blockIdx.x]);
  const int chosen = find(
      row.count, [&](int i) { return row.weight(i); },
      [&](std::uint64_t total) { return place_of(draw, total); }, room);
  if (threadIdx.x == 0) id = chosen;
}

// Reads the logits as they were: an id may have occurred more than once.
__global__ void penalize_kernel(const float* logits, const std::int64_t* occurred,
                                std::int64_t count, std::int64_t classes, float penalty,
                                float* changed) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t n = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= count) return;
  const std::int64_t id = occurred[row * count + n], at = row * classes + id;
  if (id >= 0 && id < classes) changed[at] = penalized(logits[at], penalty);
}

}  // namespace
}  // namespace cuda

void CudaBackend::sample(const SampleProblem& p) {
  const std::int64_t rows = p.logits.size(0), classes = p.logits.size(1);
  constexpr std::int64_t kMostRows = 65535;
  if (rows > kMostRows) throw Error("sample: more than 65535 rows are too many for one call");
  if (rows == 0) return;
  const auto* logits = cuda::pointer<const float>(p.logits);
  Tensor changed;
  if (p.occurred.defined()) {
    changed = scratch<float>(rows * classes);
    const auto bytes = static_cast<std::size_t>(rows * classes) * sizeof(float);
    check_cuda(cudaMemcpyAsync(changed.raw(), logits, bytes, cudaMemcpyDeviceToDevice, stream()),
               "sample");
    const std::int64_t count = p.occurred.size(1);
    const dim3 grid(cuda::blocks_for(count), static_cast<unsigned>(rows));
    cuda::penalize_kernel<<<grid, cuda::kThreads, 0, stream()>>>(
        logits, cuda::pointer<const std::int64_t>(p.occurred), count, classes, p.penalty,
        static_cast<float*>(changed.raw()));
    logits = static_cast<const float*>(changed.raw());
  }
  const cuda::SampleJob job{logits,
                            cuda::pointer<const std::int64_t>(p.draws),
                            cuda::pointer<std::int64_t>(p.ids),
                            static_cast<int>(classes),
                            p.rate,
                            p.floor,
                            p.top_p,
                            p.top_k};
  cuda::sample_kernel<<<static_cast<unsigned>(rows), cuda::kBlock, 0, stream()>>>(job);
  check_launch("sample");
}

}  // namespace qkv
