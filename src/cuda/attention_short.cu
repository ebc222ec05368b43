// Attention of short sequences, forward: all scores of a row are in registers at once.
#include "cuda/attention_short_statistics.cuh"
#include "cuda/attention_statistics.h"

namespace qkv::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, at least
static_assert(kWarps / 2 <= 2, "tell_head has barriers for two groups of several warps");

struct ForwardRows {
  Rows out;
  float* lse;
  ShortStatistics statistics;
};

// Where values are not finite: their tile has zeros in their place, so that who does not see them
// does not feel them. They are added here to the rows that do: a weight above 0 times NaN or Inf is
// NaN or Inf.
template <class T, int kSize>
__device__ void add_strange(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                            int first, const float (&total)[2], float (&sums)[kSize / 8][4]) {
  const int rows[2] = {first + pair_row(0), first + pair_row(2)};
  const VisibleKeys visible[2] = {VisibleKeys(job, s, rows[0]), VisibleKeys(job, s, rows[1])};
#pragma unroll 1
  for (int j = 0; j < s.k_rows; ++j) {
    const T* v = job.v.at<const T>(s.k_batch, group.head, s.k_start + j);
    bool feels[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      feels[half] = total[half] != 0 && visible[half].sees(job, s, group.head, rows[half], j) &&
                    kept(job, group, rows[half], j) != 0;
    }
#pragma unroll
    for (int n = 0; n < kSize / 4; ++n) {
      const float value = to_float(v[pair_column(n / 2, n % 2)]);
      if (isfinite(value)) continue;
      if (feels[0]) sums[n / 2][n % 2] += value;
      if (feels[1]) sums[n / 2][2 + n % 2] += value;
    }
  }
}

// A lane's pairs of one row, a bit each: pair n is key 16 (n / 4) + 8 (n / 2 % 2) + 2 (lane % 4) +
// n % 2. What only some calls ask for is put into such words by loops that are not unrolled, beside
// which the code of every pair stays small.
struct PairBits {
  std::uint32_t seen = ~0u, kept = ~0u;
};
__device__ inline int key_of_bit(int n) {
  return n / 4 * kTileRows + pair_column(n / 2 % 2, n % 2);
}
template <int kTiles>
__device__ PairBits bits_of(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                            int i) {
  PairBits bits;
  if (!VisibleKeys::is_interval(job) && i < s.q_rows) {
    bits.seen = 0;
#pragma unroll 1
    for (int n = 0; n < 4 * kTiles; ++n) {
      const int j = key_of_bit(n);
      if (j < s.k_rows && is_visible(job, s, group.head, i, j)) bits.seen |= 1u << n;
    }
  }
  if (job.has_dropout) {
    bits.kept = 0;
#pragma unroll 1
    for (int n = 0; n < 4 * kTiles; n += 8) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint4 words = job.dropout.draw(group.sequence, group.head, i, key_of_bit(n) + e);
        const std::uint32_t found[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const std::uint32_t compared = job.dropout.compare(found[m]);
          bits.kept |= (compared >> (i / 8 % 2 * 16 + 15) & 1) << (n + 2 * m + e);
        }
      }
    }
  }
  return bits;
}

template <class F>
__device__ float over_row(float x, F&& f) {  // the four lanes that share one
  x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return f(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float row_total(float x) {
  return over_row(x, [](float a, float b) { return a + b; });
}

// The first key of a lane with the largest score of a row.
template <int kTiles>
__device__ int key_of(const Pairs (&pairs)[kTiles], int half, float top) {
  int key = INT_MAX;
#pragma unroll
  for (int n = 4 * kTiles - 1; n >= 0; --n) {
    if (pairs[n / 4][n / 2 % 2][2 * half + n % 2] == top) key = key_of_bit(n);
  }
  return key;
}

// Scores of a row become weights, -inf being those that are hidden and `top` the largest. Returns
// their sum, without what dropout does.
template <bool kTells, int kTiles>
__device__ float weights_of(const AttentionJob& job, std::uint32_t kept, int half, float top,
                            Pairs (&pairs)[kTiles], ScoreSums& sums) {
  float total = 0;
#pragma unroll
  for (int n = 0; n < 4 * kTiles; ++n) {
    float& x = pairs[n / 4][n / 2 % 2][2 * half + n % 2];
    const bool seen = x != -INFINITY;
    const float distance = x - top, weight = seen ? __expf(distance) : 0.0f;
    if constexpr (kTells) sums.add(distance, weight, seen);
    total += weight;
    x = (kept >> n & 1) != 0 ? weight * job.dropout.kept : 0.0f;
  }
  return total;
}

// Of a lane's two rows.
struct RowSums {
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {};
  ScoreSums told[2];
};

// Scores of 16 rows become weights, not yet divided by their sums.
template <int kTiles>
__device__ void weigh(const AttentionJob& job, const Sequence& s, const ShortGroup& group,
                      int first, const ShortStatistics& statistics, Pairs (&pairs)[kTiles],
                      RowSums& row) {
  auto& [top, total, sums] = row;
  // NaN stays: a row that sees one is NaN.
  const auto larger = [](float a, float b) { return a > b || isnan(a) ? a : b; };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + pair_row(2 * half);
    const VisibleKeys visible(job, s, i);
    const PairBits bits = bits_of<kTiles>(job, s, group, i);
    if (job.softcap > 0) {
#pragma unroll
      for (int n = 0; n < 4 * kTiles; ++n) {
        float& x = pairs[n / 4][n / 2 % 2][2 * half + n % 2];
        x = tanh_fast(job.scale / job.softcap * x);
      }
    }
    const float scale = job.softcap > 0 ? job.softcap : job.scale;
#pragma unroll
    for (int n = 0; n < 4 * kTiles; ++n) {
      const int j = key_of_bit(n);
      float& x = pairs[n / 4][n / 2 % 2][2 * half + n % 2];
      x = j >= visible.begin && j < visible.end && (bits.seen >> n & 1) != 0 ? scale * x
                                                                             : -INFINITY;
      top[half] = larger(x, top[half]);
    }
    top[half] = over_row(top[half], larger);
    if (top[half] == -INFINITY) top[half] = 0;
    if (statistics.top_index != nullptr)
      sums[half].top_key = key_of<kTiles>(pairs, half, top[half]);
    const float part = statistics.asked
                           ? weights_of<true>(job, bits.kept, half, top[half], pairs, sums[half])
                           : weights_of<false>(job, bits.kept, half, top[half], pairs, sums[half]);
    total[half] = row_total(part);
  }
}

// The arguments stay where they are: what is called with them would otherwise get copies.
template <class T, int kSize, int kTiles>
__global__ void __launch_bounds__(kShort / kTileRows * 32, kSize <= 64 ? 2 : 1)
    short_forward_kernel(const __grid_constant__ AttentionJob job, unsigned sequences, int warps,
                         const __grid_constant__ ForwardRows to) {
  extern __shared__ uint4 shared[];
  __shared__ HeadPart parts[kShort / kTileRows];
  const ShortGroup group(job, warps, sequences);
  const int padded = warps * kTileRows;
  const Sequence s = job.sequences[group.sequence];
  ShortTile<T, kSize> tiles[3];
  bool strange = false;  // of values: what else is not finite is felt by no one but its own pairs
  for (int n = 0; n < 3; ++n) {
    const int rows = n == 0 ? s.q_rows : s.k_rows, start = n == 0 ? s.q_start : s.k_start;
    const Rows& x = n == 0 ? job.q : n == 1 ? job.k : job.v;
    tiles[n].data =
        reinterpret_cast<T*>(shared) + (group.index * 3 + n) * padded * ShortTile<T, kSize>::kPitch;
    if (!group.has_work) continue;
    const int batch = n == 0 ? s.q_batch : s.k_batch;
    strange = tiles[n].load(x.at<const T>(batch, group.head, start), x.row, rows, padded,
                            group.thread(), group.threads());
  }
  strange = __syncthreads_or(strange) != 0;  // of the whole block
  if (strange) {
    if (group.has_work) tiles[2].clean(padded, group.thread(), group.threads());
    __syncthreads();
  }
  const int first = group.warp * kTileRows;
  if (!group.has_work) return;
  if (first >= s.q_rows) {
    // A head without rows has statistics too.
    if (to.statistics.asked && s.q_rows == 0) tell_head(job, s, group, to.statistics, parts);
    return;
  }
  std::uint32_t q[kSize / 16][4];
#pragma unroll
  for (int k = 0; k < kSize / 16; ++k) tiles[0].left(first, k, q[k]);
  Pairs pairs[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply(q, tiles[1], t * kTileRows, pairs[t]);
  RowSums row;
  float share[2], sums[kSize / 8][4] = {};
  weigh<kTiles>(job, s, group, first, to.statistics, pairs, row);
  if (to.statistics.asked) {
    tell_rows(job, s, group, to.statistics, RowNumbers(row.told, row.top, row.total), row.told,
              parts);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    std::uint32_t weights[4];
    as_left<T>(pairs[t], weights);
    accumulate(weights, tiles[2], t * kTileRows, sums);
  }
  if (strange) add_strange<T, kSize>(job, s, group, first, row.total, sums);
  for (int half = 0; half < 2; ++half) {
    share[half] = row.total[half] == 0 ? 0.0f : 1 / row.total[half];
    const int i = first + pair_row(2 * half);
    if (group.lane % 4 != 0 || i >= s.q_rows) continue;
    to.lse[job.lse_row(s, group.head, i)] =
        row.total[half] == 0 ? -INFINITY : row.top[half] + logf(row.total[half]);
  }
  store_sums<T, kSize>(sums, share, to.out.template at<T>(s.q_batch, group.head, s.q_start + first),
                       to.out.row, s.q_rows - first);
  if (to.statistics.asked) tell_head(job, s, group, to.statistics, parts);
}

template <class T, int kSize, int kTiles>
void launch(const AttentionJob& job, const AttentionGrid& grid, const ForwardRows& to,
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
void launch_for_keys(const AttentionJob& job, const AttentionGrid& grid, const ForwardRows& to,
                     cudaStream_t stream) {
  if (grid.longest_k <= 16) return launch<T, kSize, 1>(job, grid, to, stream);
  if (grid.longest_k <= 32) return launch<T, kSize, 2>(job, grid, to, stream);
  if (grid.longest_k <= 64) return launch<T, kSize, 4>(job, grid, to, stream);
  launch<T, kSize, 8>(job, grid, to, stream);
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
    if (!lies_in_vectors(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  // The kernels for long sequences waste most of a tile on short ones; those for few queries and
  // many keys are a matter of their own. With dropout a Hopper GPU has none of its own.
  std::int64_t queries = 0, keys = 0;
  for (const AttentionSequence& s : p.sequences) {
    queries = std::max(queries, s.q_rows);
    keys = std::max(keys, s.k_rows);
  }
  const bool alone = p.dropout > 0 || p.allowed.defined() || p.has_global();
  if (std::max(queries, keys) > (alone ? kShort : kShort / 2)) return "sequences are long";
  if (!alone && queries < 8) return "there are few queries";
  // Of backward, which needs more; forward goes the same way.
  int device = 0, most = 0;
  check_cuda(cudaGetDevice(&device), "attention");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "attention");
  if (short_backward_bytes(std::max(queries, keys), p.head_size) > most) {
    return "shared memory is too small";
  }
  return "";
}

}  // namespace

std::string why_not_short(const AttentionProblem& p, const AttentionResults& results) {
  if (results.statistics.received.defined()) return "what keys receive is asked for";
  if (watches_scores(results.statistics) && p.softcap > 0) return "statistics with softcap";
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  return lies_in_vectors(results.out) ? "" : "rows do not begin at multiples of 16 bytes";
}

std::string why_not_short(const AttentionProblem& p, const AttentionBackward& t) {
  if (t.dentropy.defined()) return "there is a gradient of the entropy";
  if (std::string reason = why_not_either(p); !reason.empty()) return reason;
  for (const Tensor* x : {&t.dout, &t.out, &t.dq, &t.dk, &t.dv}) {
    if (!lies_in_vectors(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  return "";
}

void short_forward(const AttentionJob& job, const AttentionGrid& grid, const AttentionResults& out,
                   cudaStream_t stream) {
  const AttentionStatistics& wanted = out.statistics;
  const ForwardRows to{rows_of(out.out),
                       pointer<float>(out.lse),
                       {.asked = watches_scores(wanted),
                        .entropy = pointer<float>(wanted.entropy),
                        .top_weight = pointer<float>(wanted.top_weight),
                        .top_index = pointer<int>(wanted.top_index),
                        .max_logit = pointer<float>(wanted.max_logit),
                        .score_mean = pointer<float>(wanted.score_mean),
                        .score_var = pointer<float>(wanted.score_var),
                        .entropy_mean = pointer<float>(wanted.entropy_mean),
                        .entropy_relative = pointer<float>(wanted.entropy_relative),
                        .saturation = pointer<float>(wanted.saturation)}};
  const auto run = [&]<class T>() {
    switch (job.head_size) {
      case 32: return launch_for_keys<T, 32>(job, grid, to, stream);
      case 64: return launch_for_keys<T, 64>(job, grid, to, stream);
      default: return launch_for_keys<T, 128>(job, grid, to, stream);
    }
  };
  if (out.out.dtype() == DType::bf16) {
    run.template operator()<device_bf16>();
  } else {
    run.template operator()<device_f16>();
  }
  check_launch("attention");
}

}  // namespace qkv::cuda
