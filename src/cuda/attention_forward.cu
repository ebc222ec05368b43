// Attention forward on any GPU, for every option of the contract, in f32. A block has 64 queries of
// one head and up to 128 columns of the values, walks over the keys they see and keeps the softmax
// of what it has seen (online softmax).
#include "cuda/attention.h"
#include "cuda/attention_tile.cuh"

namespace qkv {
namespace cuda {
namespace {

// Per row, kept by all 16 lanes that share it.
struct RunningRow {
  float top = -INFINITY;  // the maximum so far, the sink included
  float sum = 0;          // of e^(s - top), the sink included
};

// What the statistics of a row need besides.
struct RunningStatistics {
  float seen = 0;                // visible keys
  float weighted = 0, mass = 0;  // sum of e^x x and of e^x, x = s - top, over visible keys
  float best = -INFINITY;        // the largest score of a key ...
  int best_key = -1;             // ... and where it was first
  float logit = -INFINITY;       // the largest a
  float origin = 0;             // scores are counted from here, so that their mean keeps its digits
  float mean = 0, squares = 0;  // of s, by Welford's rule for groups
  bool has_nan_logit = false;
};

__device__ void add_statistics(RunningStatistics& t, const Score (&pairs)[kSide], int first_key,
                               float top, const float (&e)[kSide]) {
  float count = 0, plain = 0, best = -INFINITY, logit = -INFINITY, weighted = 0, mass = 0;
  int best_key = INT_MAX;
  bool nan_logit = false;
  for (int c = 0; c < kSide; ++c) {
    const Score& pair = pairs[c];
    if (!pair.visible) continue;
    count += 1;
    plain += pair.s;
    if (best_key == INT_MAX || pair.s > best) {
      best = pair.s;
      best_key = first_key + c;
    }
    nan_logit |= isnan(pair.a);
    logit = fmaxf(logit, pair.a);
    mass += e[c];
    if (e[c] != 0) weighted += e[c] * (pair.s - top);
  }
  for (int step = 8; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, step);
    const int other_key = __shfl_xor_sync(0xffffffffu, best_key, step);
    if (other > best || (other == best && other_key < best_key) ||
        (best_key == INT_MAX && other_key != INT_MAX)) {
      best = other;
      best_key = other_key;
    }
    nan_logit |= __shfl_xor_sync(0xffffffffu, int{nan_logit}, step) != 0;
  }
  // Both rows of a warp take part in every exchange, whatever they see.
  count = row_sum(count);
  const float about = row_sum(plain) / fmaxf(count, 1);
  if (t.seen == 0) t.origin = about;
  float total = 0, squares = 0;
  for (int c = 0; c < kSide; ++c) {
    if (pairs[c].visible) total += pairs[c].s - t.origin;
  }
  const float mean = row_sum(total) / fmaxf(count, 1);
  for (int c = 0; c < kSide; ++c) {
    const float d = pairs[c].s - t.origin - mean;
    if (pairs[c].visible) squares += d * d;
  }
  squares = row_sum(squares);
  mass = row_sum(mass);
  weighted = row_sum(weighted);
  logit = row_max(logit);
  if (count == 0) return;
  const float both = t.seen + count, gap = mean - t.mean;
  t.squares += squares + gap * gap * (t.seen * count / both);
  t.mean += gap * (count / both);
  t.seen = both;
  t.mass += mass;
  t.weighted += weighted;
  t.logit = fmaxf(t.logit, logit);
  t.has_nan_logit |= nan_logit;
  if (t.best_key < 0 || best > t.best) {
    t.best = best;
    t.best_key = best_key;
  }
}

template <class T, int kWide, bool kStatistics>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(AttentionJob job, Rows out, float* lse, RowStatistics rows) {
  extern __shared__ char shared[];
  auto& sum_room = *reinterpret_cast<SumRoom<kWide>*>(shared);
  auto& product_room = *reinterpret_cast<ProductRoom*>(shared + sizeof(SumRoom<kWide>));
  const Lane lane;
  const int chunks = (job.value_size + 16 * kWide - 1) / (16 * kWide);
  const int sequence = blockIdx.z, head = blockIdx.y;
  const int first_column = static_cast<int>(blockIdx.x) % chunks * 16 * kWide;
  const std::int64_t first = std::int64_t{blockIdx.x} / chunks * kTile;
  const Sequence s = job.sequences[sequence];
  if (first >= s.q_rows) return;

  const auto q = block_of<T>(job.q, s.q_batch, head, s.q_start, first, s.q_rows);
  const Range keys = keys_seen(job, s, first, first + kTile - 1);
  RunningRow row[kSide];
  RunningStatistics statistics[kStatistics ? kSide : 1];
  bool sees[kSide] = {};
  Sums<kWide> sums = {};
  if (job.sinks != nullptr) {
    const float sink = job.sinks[head];
    for (int r = 0; r < kSide; ++r) row[r] = {sink, sink == -INFINITY ? 0.0f : 1.0f};
  }
  for (std::int64_t j = keys.begin / kTile * kTile; j < keys.end; j += kTile) {
    const int key_head = head / job.group;
    const auto k = block_of<T>(job.k, s.k_batch, key_head, s.k_start, j, s.k_rows);
    const auto v = block_of<T>(job.v, s.k_batch, key_head, s.k_start, j, s.k_rows);
    Tile t;
    product(q, k, job.head_size, product_room, t);
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      const std::int64_t i = first + lane.row(r);
      Score pairs[kSide];
      float top = row[r].top;
      bool any = false;
      for (int c = 0; c < kSide; ++c) {
        pairs[c] = score_of(job, s, sequence, head, i, j + lane.column(c), t[r][c]);
        if (pairs[c].visible) top = fmaxf(top, pairs[c].s);
        any |= pairs[c].visible;
      }
      top = row_max(top);
      sees[r] |= any;
      // Where all is -inf so far, any number but that serves as the one subtracted.
      const float base = top == -INFINITY ? 0.0f : top;
      const float shrink = row[r].top == -INFINITY ? 0.0f : expf(row[r].top - base);
      float e[kSide], total = 0, keep[kSide] = {1, 1, 1, 1};
      for (int c = 0; c < kSide; ++c) {
        e[c] = pairs[c].visible ? expf(pairs[c].s - base) : 0.0f;
        total += e[c];
      }
      if (job.has_dropout) dropout_of(job, sequence, head, i, j + lane.column(0), keep);
      if constexpr (kStatistics) {
        RunningStatistics& st = statistics[r];
        if (row[r].top != -INFINITY && shrink != 1) {
          // Sums of e^x x under a new maximum: x becomes x - d.
          const float d = base - row[r].top;
          st.weighted = shrink == 0 ? 0.0f : shrink * (st.weighted - d * st.mass);
          st.mass *= shrink;
        }
        add_statistics(st, pairs, static_cast<int>(j) + lane.column(0), base, e);
      }
      row[r].sum = row[r].sum * shrink + row_sum(total);
      row[r].top = top;
      for (int k2 = 0; k2 < kWide; ++k2) sums[r][k2] *= shrink;
      for (int c = 0; c < kSide; ++c) {
        const bool felt = pairs[c].visible && keep[c] != 0;
        sum_room.weights[lane.column(c)][lane.row(r)] = felt ? e[c] * keep[c] : kHidden;
      }
    }
    const bool strange = load_values<kWide>(v, first_column, job.value_size, sum_room);
    add_product<kWide>(sum_room, strange, sums);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    const std::int64_t i = first + lane.row(r);
    bool seeing = sees[r];
    for (int step = 8; step > 0; step /= 2) {
      seeing |= __shfl_xor_sync(0xffffffffu, int{seeing}, step) != 0;
    }
    if (i >= s.q_rows) continue;
    const float total = row[r].sum;
    const bool is_zero = !seeing || total == 0;
    const float share = is_zero ? 0.0f : 1 / total;
    const float row_lse = is_zero ? -INFINITY : row[r].top + logf(total);
    T* to = out.at<T>(s.q_batch, head, s.q_start + i);
    for (int k = 0; k < kWide; ++k) {
      const int column = first_column + sum_column(lane, k);
      if (column < job.value_size) {
        to[column * out.element] = from_float<T>(is_zero ? 0.0f : sums[r][k] * share);
      }
    }
    if (first_column != 0 || lane.tx != 0) continue;
    const std::int64_t at = job.lse_row(s, head, i);
    lse[at] = row_lse;
    if constexpr (kStatistics) {
      const RunningStatistics& st = statistics[r];
      rows.seen[at] = seeing ? st.seen : 0.0f;
      rows.top[at] = row[r].top == -INFINITY ? 0.0f : row[r].top;
      rows.share[at] = share;
      rows.logit[at] = st.has_nan_logit ? NAN : st.logit;
      rows.origin[at] = st.origin;
      rows.mean[at] = st.mean;
      rows.squares[at] = st.squares;
      // lse - sum p s; what the sink takes, no key has.
      const float top = row[r].top;
      const float rest = job.sinks != nullptr ? top * (total - st.mass) * share : 0.0f;
      const float entropy = logf(total) - st.weighted * share + rest;
      if (rows.entropy != nullptr) rows.entropy[at] = seeing ? entropy : 0.0f;
      if (rows.top_weight != nullptr) {
        rows.top_weight[at] = seeing ? expf(st.best - top) * share : 0.0f;
      }
      if (rows.top_index != nullptr) rows.top_index[at] = seeing ? st.best_key : -1;
    }
  }
}

template <class T, int kWide>
void launch(const AttentionJob& job, const AttentionGrid& grid, const Rows& out, float* lse,
            const RowStatistics* rows, cudaStream_t stream) {
  const int chunks = (job.value_size + 16 * kWide - 1) / (16 * kWide);
  const dim3 blocks(grid.row_tiles(kTile) * static_cast<unsigned>(chunks),
                    static_cast<unsigned>(job.heads), grid.sequences);
  constexpr std::size_t kBytes = sizeof(SumRoom<kWide>) + sizeof(ProductRoom);
  const auto run = [&](auto* kernel) {
    allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
    kernel<<<blocks, kThreads, kBytes, stream>>>(job, out, lse,
                                                 rows != nullptr ? *rows : RowStatistics{});
  };
  if (rows != nullptr) {
    run(forward_kernel<T, kWide, true>);
  } else {
    run(forward_kernel<T, kWide, false>);
  }
}

}  // namespace

void general_forward(const AttentionJob& job, const AttentionGrid& grid, DType dtype,
                     const Rows& out, float* lse, const RowStatistics* rows, cudaStream_t stream) {
  dispatch_device(dtype, [&]<class T>() {
    if (job.value_size <= 64) {
      launch<T, 4>(job, grid, out, lse, rows, stream);
    } else {
      launch<T, 8>(job, grid, out, lse, rows, stream);
    }
  });
  check_launch("attention");
}

}  // namespace cuda
}  // namespace qkv
