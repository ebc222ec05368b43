// What the scores of short sequences tell: sums of a row while its weights are made, then numbers
// of rows, and of the head that a group of warps has. Nothing of it passes through memory.
#pragma once

#include <cfloat>

#include "cuda/attention_short.cuh"
#include "cuda/tile/barrier.cuh"

namespace qkv::cuda {

// Where statistics go (qkv/attention.h); null: not asked for.
struct ShortStatistics {
  bool asked = false;
  float *entropy = nullptr, *top_weight = nullptr;  // of rows, like lse
  int* top_index = nullptr;
  float *max_logit = nullptr, *score_mean = nullptr, *score_var = nullptr;  // [sequences, heads]
  float *entropy_mean = nullptr, *entropy_relative = nullptr, *saturation = nullptr;
};

// A lane's part of what the scores of a row tell, each relative to the row's largest. That one is
// among them, so squares about it tell the variance to within as many times rounding as there are
// keys.
struct ScoreSums {
  float count = 0, total = 0, squares = 0;
  float weighted = 0;  // sum of weights times distances
  int top_key = INT_MAX;

  __device__ void add(float distance, float weight, bool seen) {
    const float gap = seen ? distance : 0.0f;
    count += seen ? 1.0f : 0.0f;
    total += gap;
    squares = fmaf(gap, gap, squares);
    weighted = fmaf(weight, fmaxf(distance, -FLT_MAX), weighted);  // 0 times -inf would be NaN
  }
};

// The four lanes of a quad share two rows. The sum over them of each lane's two numbers: lanes of
// even number get that of the first, those of odd number that of the second.
__device__ inline float sum_by_row(float first, float second) {
  const bool is_odd = threadIdx.x % 2 != 0;
  float x = is_odd ? second : first;
  x += __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline int least_by_row(int first, int second) {
  const bool is_odd = threadIdx.x % 2 != 0;
  int x = is_odd ? second : first;
  x = min(x, __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1));
  return min(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
// Over the 16 rows of a warp, one in each lane of a quad's first two and again in its last two.
__device__ inline float sum_of_rows(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
// Floats in the order of integers, and back.
__device__ inline int ordered(int bits) { return bits ^ (bits >> 31 & INT_MAX); }
__device__ inline float largest_of_warp(float x) {
  return __int_as_float(ordered(__reduce_max_sync(0xffffffffu, ordered(__float_as_int(x)))));
}

// What the rows of one warp tell of their head.
struct HeadPart {
  float top = -INFINITY;                   // the largest score; NaN: there is one among them
  float pairs = 0, mean = 0, squares = 0;  // mean: relative to top; squares: about the mean
  float rows = 0, entropy = 0, relative = 0, saturated = 0;
};

// The row of a lane, when all four lanes have added their scores.
struct RowNumbers {
  bool sees;
  float count, top, mean, squares, entropy, top_weight;

  __device__ RowNumbers(const ScoreSums (&sums)[2], const float (&tops)[2],
                        const float (&masses)[2]) {
    const bool is_odd = threadIdx.x % 2 != 0;
    const float mass = is_odd ? masses[1] : masses[0];
    top = is_odd ? tops[1] : tops[0];
    count = sum_by_row(sums[0].count, sums[1].count);
    sees = count > 0;
    const float each = 1 / fmaxf(count, 1), total = sum_by_row(sums[0].total, sums[1].total);
    mean = total * each;
    squares = sum_by_row(sums[0].squares, sums[1].squares) - total * mean;
    if (squares < 0) squares = 0;  // NaN stays
    const float share = 1 / mass, weighted = sum_by_row(sums[0].weighted, sums[1].weighted);
    entropy = sees ? logf(mass) - weighted * share : 0.0f;
    top_weight = sees ? share : 0.0f;
  }
  __device__ HeadPart of_warp() const {
    const bool is_first = threadIdx.x % 4 < 2;  // of the two lanes that have this row
    const auto rows_that = [&](bool x) {
      return static_cast<float>(__popc(__ballot_sync(0xffffffffu, sees && is_first && x)));
    };
    HeadPart part;
    part.rows = rows_that(true);
    part.saturated = rows_that(top_weight > 0.99f);
    const bool is_unknown = rows_that(isnan(top)) > 0;
    part.top = is_unknown ? NAN : largest_of_warp(sees ? top : -INFINITY);
    part.pairs = static_cast<float>(
        __reduce_add_sync(0xffffffffu, is_first ? static_cast<unsigned>(count) : 0u));
    const float gap = sees ? top - part.top + mean : 0.0f;
    part.mean = sum_of_rows(count * gap) / fmaxf(part.pairs, 1);
    const float off = gap - part.mean;
    part.squares = sum_of_rows(sees ? fmaf(count * off, off, squares) : 0.0f);
    part.entropy = sum_of_rows(entropy);
    part.relative = sum_of_rows(sees && count > 1 ? __fdividef(entropy, logf(count)) : 0.0f);
    return part;
  }
};

// The parts of a head's warps to its statistics, by one thread.
__device__ inline void store_head(const ShortStatistics& to, std::int64_t result,
                                  const HeadPart* parts, int count) {
  float top = -INFINITY, rows = 0, entropy = 0, relative = 0, saturated = 0;
  float pairs = 0, total = 0, squares = 0;
  for (int n = 0; n < count; ++n) {
    const HeadPart& part = parts[n];
    if (part.top > top || isnan(part.top)) top = part.top;
    rows += part.rows;
    entropy += part.entropy;
    relative += part.relative;
    saturated += part.saturated;
  }
  const auto gap = [&](const HeadPart& part) { return part.top - top + part.mean; };
  for (int n = 0; n < count; ++n) {
    if (parts[n].rows == 0) continue;
    pairs += parts[n].pairs;
    total += parts[n].pairs * gap(parts[n]);
  }
  const float mean = total / fmaxf(pairs, 1);
  for (int n = 0; n < count; ++n) {
    if (parts[n].rows == 0) continue;
    const float off = gap(parts[n]) - mean;
    squares += fmaf(parts[n].pairs * off, off, parts[n].squares);
  }
  const auto put = [&](float* where, float value) {
    if (where != nullptr) where[result] = pairs > 0 ? value : 0.0f;
  };
  if (to.max_logit != nullptr) to.max_logit[result] = top;
  put(to.score_mean, top == INFINITY ? INFINITY : top + mean);
  put(to.score_var, squares / pairs);
  put(to.entropy_mean, entropy / rows);
  put(to.entropy_relative, relative / rows);
  put(to.saturation, saturated / rows);
}

// The rows of this warp, and its part of the head's statistics. Warps whose rows do not exist do
// not call this.
__device__ inline void tell_rows(const AttentionJob& job, const Sequence& s,
                                 const ShortGroup& group, const ShortStatistics& to,
                                 const RowNumbers& row, const ScoreSums (&sums)[2],
                                 HeadPart* parts) {
  const int i = group.warp * kTileRows + pair_row(group.lane % 2 * 2);
  const bool writes = group.lane % 4 < 2 && i < s.q_rows;
  const std::int64_t at = job.lse_row(s, group.head, i);
  if (to.top_index != nullptr) {
    const int key = least_by_row(sums[0].top_key, sums[1].top_key);
    if (writes) to.top_index[at] = row.sees && key != INT_MAX ? key : -1;
  }
  if (writes && to.entropy != nullptr) to.entropy[at] = row.entropy;
  if (writes && to.top_weight != nullptr) to.top_weight[at] = row.top_weight;
  const HeadPart part = row.of_warp();
  if (group.lane == 0) parts[group.index * group.warps + group.warp] = part;
}

// The head of a group, from the parts of its warps; again by those that have rows.
__device__ inline void tell_head(const AttentionJob& job, const Sequence& s,
                                 const ShortGroup& group, const ShortStatistics& to,
                                 const HeadPart* parts) {
  const int warps = (s.q_rows + kTileRows - 1) / kTileRows;
  // Of groups with several warps a block has one or two. Numbers that the compiler knows: it would
  // set all 16 barriers aside.
  if (warps > 1) group.index == 0 ? named_wait(1, 32 * warps) : named_wait(2, 32 * warps);
  if (group.thread() != 0) return;
  store_head(to, std::int64_t{group.sequence} * job.heads + group.head,
             parts + group.index * group.warps, warps);
}

}  // namespace qkv::cuda
