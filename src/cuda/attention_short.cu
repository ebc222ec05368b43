// Attention of short sequences, forward: all scores of a row are in registers at once.
#include "cuda/attention_short.cuh"

namespace qkv::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, at least

template <class T>
struct ForwardRows {
  Rows out;
  float* lse;
};

// Row i by a warp, pair by pair: where something is not finite, a hidden pair must not be
// multiplied at all.
template <class T, int kSize>
__device__ void careful_row(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                            int i, const ShortTile<T, kSize> (&tiles)[3],
                            const ForwardRows<T>& to) {
  constexpr int kEach = kSize / 32;
  const auto& [q, k, v] = tiles;
  const auto score = [&](int j) {
    return score_of(job, s, group.sequence, group.head, i, j,
                    careful_dot<T, kSize>(q.row(i), k.row(j)));
  };
  float top = -INFINITY, total = 0, sums[kEach] = {};
  bool sees = false;
  for (int j = 0; j < s.k_rows; ++j) {
    const Score pair = score(j);
    if (pair.visible) top = fmaxf(top, pair.s);
    sees |= pair.visible;
  }
  const float base = top == -INFINITY ? 0.0f : top;
  for (int j = 0; j < s.k_rows; ++j) {
    const Score pair = score(j);
    if (!pair.visible) continue;
    const float e = expf(pair.s - base), keep = kept(job, group.sequence, group.head, i, j);
    total += e;
    if (keep == 0) continue;
    for (int n = 0; n < kEach; ++n) {
      sums[n] = fmaf(e * keep, to_float(v.row(j)[n * 32 + group.lane]), sums[n]);
    }
  }
  const bool is_zero = !sees || total == 0;
  T* out = to.out.template at<T>(s.q_batch, group.head, s.q_start + i);
  for (int n = 0; n < kEach; ++n) {
    out[n * 32 + group.lane] = from_float<T>(is_zero ? 0.0f : sums[n] / total);
  }
  if (group.lane == 0) {
    to.lse[job.lse_row(s, group.head, i)] = is_zero ? -INFINITY : base + logf(total);
  }
}

// Scores of 16 rows become weights, not yet divided by their sums.
template <int kTiles>
__device__ void weigh(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                      int first, Pairs (&pairs)[kTiles], float (&top)[2], float (&total)[2]) {
  const auto over_row = [](float x, auto f) {
    x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return f(x, __shfl_xor_sync(0xffffffffu, x, 2));
  };
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float& x = pairs[t][n / 4][n % 4];
      const Score pair = score_of(job, s, group.sequence, group.head, first + pair_row(n % 4),
                                  t * kTileRows + pair_column(n / 4, n % 4), x);
      x = pair.visible ? pair.s : -INFINITY;
      top[n % 4 / 2] = x > top[n % 4 / 2] || isnan(x) ? x : top[n % 4 / 2];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // NaN stays: a row that sees one is NaN.
    top[half] = over_row(top[half], [](float a, float b) { return a > b || isnan(a) ? a : b; });
    if (top[half] == -INFINITY) top[half] = 0;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float& x = pairs[t][n / 4][n % 4];
      x = x == -INFINITY ? 0.0f : expf(x - top[n % 4 / 2]);
      total[n % 4 / 2] += x;
      if (job.has_dropout) {
        x *= kept(job, group.sequence, group.head, first + pair_row(n % 4),
                  t * kTileRows + pair_column(n / 4, n % 4));
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] = over_row(total[half], [](float a, float b) { return a + b; });
  }
}

template <class T, int kSize, int kTiles>
__global__ void short_forward_kernel(AttentionJob job, unsigned sequences, int warps,
                                     ForwardRows<T> to) {
  extern __shared__ uint4 shared[];
  const ShortGroup group(job, warps, sequences);
  const int padded = warps * kTileRows;
  const Sequence s = job.sequences[group.sequence];
  ShortTile<T, kSize> tiles[3];
  bool strange = false;
  for (int n = 0; n < 3; ++n) {
    const int rows = n == 0 ? s.q_rows : s.k_rows, start = n == 0 ? s.q_start : s.k_start;
    const Rows& x = n == 0 ? job.q : n == 1 ? job.k : job.v;
    tiles[n].data =
        reinterpret_cast<T*>(shared) + (group.index * 3 + n) * padded * ShortTile<T, kSize>::kPitch;
    if (!group.has_work) continue;
    const int batch = n == 0 ? s.q_batch : s.k_batch;
    strange |= tiles[n].load(x.at<const T>(batch, group.head, start), x.row, rows, padded,
                             group.thread(), group.threads());
  }
  // Of the whole block: who is careful without need is only slower.
  strange = __syncthreads_or(strange) != 0;
  const int first = group.warp * kTileRows;
  if (!group.has_work || first >= s.q_rows) return;
  if (strange) {
    for (int i = first; i < min(first + kTileRows, s.q_rows); ++i) {
      careful_row(job, s, group, i, tiles, to);
    }
    return;
  }
  std::uint32_t q[kSize / 16][4];
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) tiles[0].left(first, k, q[k]);
  Pairs pairs[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply(q, tiles[1], t * kTileRows, pairs[t]);
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {}, share[2], sums[kSize / 8][4] = {};
  weigh<kTiles>(job, s, group, first, pairs, top, total);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) accumulate(pairs[t], tiles[2], t * kTileRows, sums);
  for (int half = 0; half < 2; ++half) {
    share[half] = total[half] == 0 ? 0.0f : 1 / total[half];
    const int i = first + pair_row(2 * half);
    if (group.lane % 4 != 0 || i >= s.q_rows) continue;
    to.lse[job.lse_row(s, group.head, i)] =
        total[half] == 0 ? -INFINITY : top[half] + logf(total[half]);
  }
  store_sums<T, kSize>(sums, share, to.out.template at<T>(s.q_batch, group.head, s.q_start + first),
                       to.out.row, s.q_rows - first);
}

template <class T, int kSize, int kTiles>
void launch(const AttentionJob& job, const AttentionGrid& grid, const ForwardRows<T>& to,
            cudaStream_t stream) {
  const int warps = short_warps(std::max(grid.longest_q, grid.longest_k));
  const int groups = std::max(1, kWarps / warps);
  const std::size_t bytes =
      std::size_t{3} * groups * warps * kTileRows * ShortTile<T, kSize>::kPitch * sizeof(T);
  auto* kernel = short_forward_kernel<T, kSize, kTiles>;
  allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  const std::int64_t pairs = std::int64_t{grid.sequences} * job.heads;
  kernel<<<blocks_for(pairs, groups), static_cast<unsigned>(groups * warps * 32), bytes, stream>>>(
      job, grid.sequences, warps, to);
}

template <class T, int kSize>
void launch_for_keys(const AttentionJob& job, const AttentionGrid& grid, const ForwardRows<T>& to,
                     cudaStream_t stream) {
  if (grid.longest_k <= 16) return launch<T, kSize, 1>(job, grid, to, stream);
  if (grid.longest_k <= 32) return launch<T, kSize, 2>(job, grid, to, stream);
  if (grid.longest_k <= 64) return launch<T, kSize, 4>(job, grid, to, stream);
  launch<T, kSize, 8>(job, grid, to, stream);
}

bool lies_well(const Tensor& x) {
  if (!x.defined()) return true;
  return x.stride(3) == 1 && x.stride(2) % 8 == 0 && x.stride(1) % 8 == 0 && x.stride(0) % 8 == 0 &&
         is_aligned(x.raw());
}

std::string why_not_either(const AttentionProblem& p) {
  if (p.q.dtype() == DType::f32) return "f32 is not for matrix instructions";
  if (p.head_size != p.value_size) return "q and v have different head sizes";
  if (p.head_size != 32 && p.head_size != 64 && p.head_size != 128) return "an odd head size";
  if (p.group() != 1) return "heads share keys";
  if (p.bias.defined() || p.has_diagonal_bias()) return "there is a bias";
  if (p.sinks.defined()) return "there are sinks";
  if (p.sequences.empty() || p.q.numel() == 0 || p.k.numel() == 0) return "there is nothing to do";
  for (const Tensor* x : {&p.q, &p.k, &p.v}) {
    if (!lies_well(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  // The kernels for long sequences waste most of a tile on short ones; those for few queries and
  // many keys are a matter of their own. With dropout there is only the general kernel besides.
  std::int64_t queries = 0, keys = 0;
  for (const AttentionSequence& s : p.sequences) {
    queries = std::max(queries, s.q_rows);
    keys = std::max(keys, s.k_rows);
  }
  const bool alone = p.dropout > 0 || p.allowed.defined() || p.global_positions.defined();
  if (std::max(queries, keys) > (alone ? kShort : kShort / 2)) return "sequences are long";
  if (!alone && queries < 8) return "there are few queries";
  // Of backward, which needs more; forward goes the same way.
  int device = 0, most = 0;
  check_cuda(cudaGetDevice(&device), "attention");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "attention");
  const std::int64_t rows = kTileRows * std::max(kWarps, short_warps(std::max(queries, keys)));
  if (rows * (4 * 2 * (p.head_size + 8) + 8) > most) return "shared memory is too small";
  return "";
}

}  // namespace

std::string why_not_short(const AttentionProblem& p, const AttentionResults& results) {
  const AttentionStatistics& s = results.statistics;
  if (s.max_logit.defined() || s.score_mean.defined() || s.entropy.defined() ||
      s.top_weight.defined() || s.received.defined()) {
    return "statistics are asked for";
  }
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  return lies_well(results.out) ? "" : "rows do not begin at multiples of 16 bytes";
}

std::string why_not_short(const AttentionProblem& p, const AttentionBackward& t) {
  if (t.dentropy.defined()) return "there is a gradient of the entropy";
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  for (const Tensor* x : {&t.dout, &t.out, &t.dq, &t.dk, &t.dv}) {
    if (!lies_well(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  return "";
}

void short_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype, const Rows& out,
                   float* lse, cudaStream_t stream) {
  const auto run = [&]<class T>() {
    const ForwardRows<T> to{out, lse};
    switch (job.head_size) {
      case 32: return launch_for_keys<T, 32>(job, grid, to, stream);
      case 64: return launch_for_keys<T, 64>(job, grid, to, stream);
      default: return launch_for_keys<T, 128>(job, grid, to, stream);
    }
  };
  if (dtype == DType::bf16) {
    run.template operator()<device_bf16>();
  } else {
    run.template operator()<device_f16>();
  }
  check_launch("attention");
}

}  // namespace qkv::cuda
