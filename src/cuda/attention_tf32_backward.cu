// Attention backward in TF32: one kernel for dq and one for dk and dv, which are two views of the
// same computation. A block has rows of its own (queries; keys), which stay in shared memory with
// their results in registers, and walks over those that they see (keys; queries), which pass. Every
// sum has one order, and nothing is S x S.
//
//   stay   pass    p = e^(scale stay1 pass1^T - lse)      results
//   q, dout  k, v    ds = p (stay2 pass2^T + base)          dq = scale ds k
//   k, v     q, dout                                        dk = scale ds q, dv = p dout
#include "cuda/attention_tf32.cuh"
#include "cuda/norm.cuh"

namespace qkv::cuda {
namespace {

template <int kSize>
struct BackwardPlan {
  static constexpr bool kWide = kSize > 64;
  // Registers hold two results of 32 rows up to size 64, of 16 beyond.
  static constexpr int kBlocks = kWide ? 1 : 2, kWarps = kWide ? 8 : 4, kAtOnce = kWide ? 1 : 2;
  static constexpr int kThreads = 32 * kWarps, kWarpRows = 16 * kBlocks;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kColumns = 32, kStages = 2;  // of what passes
  static constexpr int kFloats =
      2 * kRows * kSize + kStages * kColumns * (2 * kSize + 2);  // and shift and base
  static constexpr int kBytes = kFloats * static_cast<int>(sizeof(float));
};

// A warp for each row: what p and ds are made of.
constexpr int kRowWarps = 8;
__global__ void __launch_bounds__(kRowWarps * 32)
    tf32_rows_kernel(const __grid_constant__ AttentionJob job, Tf32Backward x) {
  const int lane = static_cast<int>(threadIdx.x) % 32, head = static_cast<int>(blockIdx.y);
  const Sequence s = job.sequences[blockIdx.z];
  const int i = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= s.q_rows) return;
  const float* const a = x.tensors.dout.at<const float>(s.q_batch, head, s.q_start + i);
  const float* const b = x.tensors.out.at<const float>(s.q_batch, head, s.q_start + i);
  float dot = 0;
  for (int d = lane; d < job.value_size; d += 32) dot += a[d] * b[d];
  dot = warp_sum(dot);
  if (lane != 0) return;
  const std::int64_t at = job.lse_row(s, head, i);
  const float lse = x.tensors.lse[at];
  const bool sees = lse != -INFINITY;
  x.shift[at] = sees ? lse * kLog2e : INFINITY;  // then all p are 0
  x.rows.top[at] = sees ? lse : 0.0f;
  x.rows.share[at] = sees ? 1.0f : 0.0f;
  x.rows.base[at] = (x.tensors.dlse != nullptr ? x.tensors.dlse[at] : 0.0f) - dot;
}

// e^(..) that is at most 1, however its exponent was rounded. NaN stays NaN.
__device__ inline float weight_of(float exponent) {
  asm("min.NaN.f32 %0, %0, 0f00000000;" : "+f"(exponent));
  return exp2_fast(exponent);
}

template <int kSize, bool kOfKeys>
__global__ void __launch_bounds__(BackwardPlan<kSize>::kThreads, BackwardPlan<kSize>::kAtOnce)
    tf32_backward_kernel(const __grid_constant__ AttentionJob job, WorkOrder order,
                         const __grid_constant__ Tf32Backward x) {
  using Plan = BackwardPlan<kSize>;
  using Tile = FloatTile<kSize>;
  constexpr int kRows = Plan::kRows, kWarpRows = Plan::kWarpRows, kBlocks = Plan::kBlocks;
  constexpr int kColumns = Plan::kColumns, kStages = Plan::kStages;
  extern __shared__ __align__(128) float room[];
  const Tile stay1{room}, stay2{stay1.data + kRows * kSize};
  float* const passing = stay2.data + kRows * kSize;
  const auto pass1 = [&](int stage) { return Tile{passing + 2 * stage * kColumns * kSize}; };
  const auto pass2 = [&](int stage) { return Tile{passing + (2 * stage + 1) * kColumns * kSize}; };
  float* const numbers = passing + 2 * kStages * kColumns * kSize;  // [stage][shift, base][column]

  const LaneReader<kSize> lane;
  const int thread = static_cast<int>(threadIdx.x), t = thread % 4;
  const Place place(order);
  const int heads = kOfKeys ? job.heads / job.group : job.heads, own_head = place.pair % heads;
  const Sequence s = job.sequences[place.pair / heads];
  // First those that take longest under a causal mask: the last queries, the first keys.
  const int first = (kOfKeys ? place.tile : order.tiles - 1 - place.tile) * kRows;
  const int rows = kOfKeys ? s.k_rows : s.q_rows;
  if (first >= rows) return;
  const Sight sight = sight_of(job, s);
  const int seeing = kOfKeys ? sight.visible : s.q_seeing;  // rows from here on see nothing
  const auto sees = [&](int row) -> KeyRange {
    if (row >= seeing) return {0, 0};
    return kOfKeys ? sight.rows_of(row, s.q_seeing) : sight.of(row);
  };
  // Of rows [from, to): what some of them see, and what all of them see.
  const auto some = [&](int from, int to) -> KeyRange {
    to = min(to, seeing);
    return from < to ? KeyRange{sees(from).begin, sees(to - 1).end} : KeyRange{0, 0};
  };
  const auto all = [&](int from, int to) -> KeyRange {
    to = min(to, rows);
    return from < to && to <= seeing ? KeyRange{sees(to - 1).begin, sees(from).end}
                                     : KeyRange{0, 0};
  };
  const int warp = warp_number(), mine = first + kWarpRows * warp;
  const KeyRange range = some(first, first + kRows), all_see = all(first, first + kRows);
  const KeyRange warp_some = some(mine, mine + kWarpRows), warp_all = all(mine, mine + kWarpRows);
  const int tiles = max(0, (range.end - range.begin + kColumns - 1) / kColumns);
  const int steps = kOfKeys ? tiles * job.group : tiles;

  // Step n has tile n % tiles of what passes; of keys, for each head of the group in turn.
  const auto position = [&](int n) { return range.begin + n % tiles * kColumns; };
  const auto load_step = [&](int n) {
    if (n >= steps) return;
    const int at = position(n), stage = n % kStages, count = range.end - at;
    const int head = kOfKeys ? own_head * job.group + n / tiles : own_head / job.group;
    const Rows &a = kOfKeys ? job.q : job.k, &b = kOfKeys ? x.tensors.dout : job.v;
    const int batch = kOfKeys ? s.q_batch : s.k_batch, row = (kOfKeys ? s.q_start : s.k_start) + at;
    pass1(stage).template load<kColumns, Plan::kThreads>(a.at<const float>(batch, head, row), a.row,
                                                         count, job.head_size);
    pass2(stage).template load<kColumns, Plan::kThreads>(b.at<const float>(batch, head, row), b.row,
                                                         count, job.value_size);
    if (kOfKeys && thread < 2 * kColumns) {
      const int column = thread % kColumns;
      const float* const from = thread < kColumns ? x.shift : x.rows.base;
      const bool present = column < count;
      copy_word_later(numbers + 2 * stage * kColumns + thread,
                      from + job.lse_row(s, head, at + (present ? column : 0)), present);
    }
    end_group();
  };

  float shift[kBlocks][2] = {}, base[kBlocks][2] = {};  // of queries that stay
  if (steps > 0) {
    const Rows &a = kOfKeys ? job.k : job.q, &b = kOfKeys ? job.v : x.tensors.dout;
    const int batch = kOfKeys ? s.k_batch : s.q_batch;
    const int row = (kOfKeys ? s.k_start : s.q_start) + first;
    stay1.template load<kRows, Plan::kThreads>(a.at<const float>(batch, own_head, row), a.row,
                                               seeing - first, job.head_size);
    stay2.template load<kRows, Plan::kThreads>(b.at<const float>(batch, own_head, row), b.row,
                                               seeing - first, job.value_size);
    load_step(0);
    wait_for_groups<0>();
    __syncthreads();
    stay1.template pack_left<kRows, Plan::kThreads>();
    stay2.template pack_left<kRows, Plan::kThreads>();
    if constexpr (!kOfKeys) {
#pragma unroll
      for (int r = 0; r < 2 * kBlocks; ++r) {
        const int i = mine + r / 2 * 16 + lane_row(r % 2);
        if (i >= rows) continue;
        shift[r / 2][r % 2] = x.shift[job.lse_row(s, own_head, i)];
        base[r / 2][r % 2] = x.rows.base[job.lse_row(s, own_head, i)];
      }
    }
  }

  const float scale = job.scale * kLog2e;
  Accumulators<kBlocks, kSize> sums1 = {}, sums2 = {};  // the latter of dv alone
#pragma unroll 1
  for (int n = 0; n < steps; ++n) {
    const int at = position(n), stage = n % kStages;
    wait_for_groups<0>();
    __syncthreads();  // this step's tiles are there, and nobody needs the last one's
    load_step(n + 1);
    if (!contains(all_see, at, at + kColumns)) {
      // 0 times what is not finite would be felt by who does not see it.
      bool tame = pass1(stage).template is_all_tame<kColumns, Plan::kThreads>();
      if (kOfKeys) tame &= pass2(stage).template is_all_tame<kColumns, Plan::kThreads>();
      if (!tame) *x.failed = 1;
    }
    if (!meet(warp_some, at, at + kColumns)) continue;
    Accumulators<kBlocks, kColumns> p, ds;
    clear<kBlocks, kColumns>(p);
    clear<kBlocks, kColumns>(ds);
#pragma unroll
    for (int c = 0; c < kSize / 16; ++c) {
      multiply_rows<kBlocks, kColumns>(lane, c, stay1, kWarpRows * warp, pass1(stage), p);
      multiply_rows<kBlocks, kColumns>(lane, c, stay2, kWarpRows * warp, pass2(stage), ds);
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {  // two neighbouring columns
      float two_shift[2], two_base[2];
      if constexpr (kOfKeys) {
        const float* const number = numbers + 2 * stage * kColumns + i / 2 * 8 + 2 * t;
        const float2 a = *reinterpret_cast<const float2*>(number);
        const float2 b = *reinterpret_cast<const float2*>(number + kColumns);
        two_shift[0] = a.x, two_shift[1] = a.y, two_base[0] = b.x, two_base[1] = b.y;
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &weight = p[m][2 * i + e], &gradient = ds[m][2 * i + e];
          weight = weight_of(fmaf(weight, scale, -(kOfKeys ? two_shift[e] : shift[m][i % 2])));
          gradient = weight * (gradient + (kOfKeys ? two_base[e] : base[m][i % 2]));
        }
      }
    }
    if (!contains(warp_all, at, at + kColumns)) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const int row = mine + 16 * m;
        const KeyRange seen[2] = {sees(row + lane_row(0)), sees(row + lane_row(1))};
        hide(p[m], seen, at, 0.0f);
        hide(ds[m], seen, at, 0.0f);
      }
    }
    if constexpr (kOfKeys) add_products<kBlocks, kColumns>(lane, p, pass2(stage), sums2);
    add_products<kBlocks, kColumns>(lane, ds, pass1(stage), sums1);
  }

#pragma unroll
  for (int r = 0; r < 2 * kBlocks; ++r) {
    const int row = mine + r / 2 * 16 + lane_row(r % 2);
    if (row >= rows) continue;
    const Rows& to = kOfKeys ? x.tensors.dk : x.tensors.dq;
    const int batch = kOfKeys ? s.k_batch : s.q_batch;
    const int place = (kOfKeys ? s.k_start : s.q_start) + row;
    store_sums<kSize>(sums1[r / 2], r % 2, job.scale, to.at<float>(batch, own_head, place),
                      job.head_size);
    if constexpr (kOfKeys) {
      store_sums<kSize>(sums2[r / 2], r % 2, 1.0f, x.tensors.dv.at<float>(batch, own_head, place),
                        job.value_size);
    }
  }
}

}  // namespace

std::int64_t tf32_backward_bytes(std::int64_t size) {
  return dispatch_tf32_size(size, [&]<int kSize>() { return BackwardPlan<kSize>::kBytes; });
}

void tf32_backward(const AttentionJob& job, const AttentionGrid& grid, const Tf32Backward& x,
                   cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(x.failed, 0, sizeof(*x.failed), stream), "attention backward");
  const auto heads = static_cast<unsigned>(job.heads);
  tf32_rows_kernel<<<dim3(grid.row_tiles(kRowWarps), heads, grid.sequences), kRowWarps * 32, 0,
                     stream>>>(job, x);
  dispatch_tf32_size(std::max(job.head_size, job.value_size), [&]<int kSize>() {
    using Plan = BackwardPlan<kSize>;
    const auto run = [&](auto* kernel, const WorkOrder& order) {
      allow_shared(reinterpret_cast<const void*>(kernel), Plan::kBytes);
      kernel<<<order.blocks(), Plan::kThreads, Plan::kBytes, stream>>>(job, order, x);
    };
    run(tf32_backward_kernel<kSize, false>,
        WorkOrder(job, grid, grid.row_tiles(Plan::kRows), job.heads, grid.longest_k));
    run(tf32_backward_kernel<kSize, true>,
        WorkOrder(job, grid, grid.key_tiles(Plan::kRows), job.heads / job.group,
                  grid.longest_q * job.group));
  });
  check_launch("attention backward");
}

}  // namespace qkv::cuda
