// An attention call as the kernels of any GPU see it, and the rules of the contract for one pair.
#pragma once

#include <cstdint>

#include "cuda/elements.cuh"
#include "cuda/pair_dropout.cuh"

namespace qkv::cuda {

// A tensor [B, H, S, D] in elements.
struct Rows {
  void* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, element = 0;  // strides

  template <class T>
  __device__ T* at(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<T*>(data) + b * batch + h * head + i * row;
  }
};

struct Sequence {
  int q_batch, k_batch, q_start, k_start, q_rows, k_rows, q_seeing, k_visible;
  std::int64_t offset;
};

struct AttentionJob {
  Rows q, k, v;
  const Sequence* sequences = nullptr;
  int heads = 0, group = 1, head_size = 0, value_size = 0;
  std::int64_t q_total = 0, k_total = 0;  // rows of the whole tensors: strides of lse, received

  float scale = 1, softcap = 0;
  bool causal = false;
  std::int64_t left = -1, right = -1;
  Rows allowed{};                          // bool; data null = everything
  const bool* global_positions = nullptr;  // [B, Sk]
  std::int64_t global_batch = 0, global_key = 0;
  std::int64_t global_first = 0;

  Rows bias{};  // data null = none
  DType bias_dtype = DType::f32;
  const float* slopes = nullptr;
  std::int64_t slopes_batch = 0, slopes_head = 0;
  const float* table = nullptr;  // [buckets, H]
  const int* buckets = nullptr;  // of relative positions -reach .. reach
  int bucket_count = 0, bucket_reach = 0;
  const float* diagonal = nullptr;  // [H][relative position], what the table says of each
  const float* sinks = nullptr;
  // Whether tiles of what is said of pairs, by a mask or a bias of 16 bits, can be copied 16 bytes
  // at a time.
  bool stages_pairs = false;

  const std::uint32_t* only_if = nullptr;  // kernels of backward do nothing while this is 0

  bool has_dropout = false;
  PairDropout dropout{};

  __device__ bool has_global() const { return global_positions != nullptr || global_first > 0; }
  __device__ std::int64_t lse_row(const Sequence& s, int head, std::int64_t i) const {
    return (std::int64_t{s.q_batch} * heads + head) * q_total + s.q_start + i;
  }
};

// What the kernels need of the pair (i, j): its score before and after softcap and bias.
struct Score {
  float a = 0, s = 0;
  bool visible = false;
};

__device__ inline std::int64_t clamped(std::int64_t x, std::int64_t most) {
  return x < -most ? -most : x > most ? most : x;
}
__device__ inline int bucket_of(const AttentionJob& job, std::int64_t relative) {
  return job.buckets[clamped(relative, job.bucket_reach) + job.bucket_reach];
}

__device__ inline bool is_global(const AttentionJob& job, const Sequence& s, std::int64_t at) {
  if (at < 0 || at >= s.k_rows) return false;
  return at < job.global_first ||
         (job.global_positions != nullptr &&
          job.global_positions[s.q_batch * job.global_batch + at * job.global_key]);
}

__device__ inline bool is_visible(const AttentionJob& job, const Sequence& s, int head,
                                  std::int64_t i, std::int64_t j) {
  if (i >= s.q_seeing || j >= s.k_visible) return false;
  const std::int64_t position = i + s.offset;
  if (job.causal && j > position) return false;
  const bool inside =
      (job.left < 0 || j >= position - job.left) && (job.right < 0 || j <= position + job.right);
  if (!inside) {
    if (!is_global(job, s, j) && !is_global(job, s, position)) return false;
  }
  return job.allowed.data == nullptr ||
         job.allowed.at<const bool>(s.q_batch, head, i)[j * job.allowed.element];
}

__device__ inline float bias_of(const AttentionJob& job, const Sequence& s, int sequence, int head,
                                std::int64_t i, std::int64_t j) {
  if (job.bias.data != nullptr) {
    const std::int64_t at = j * job.bias.element;
    switch (job.bias_dtype) {
      case DType::bf16: return to_float(job.bias.at<const device_bf16>(s.q_batch, head, i)[at]);
      case DType::f16: return to_float(job.bias.at<const device_f16>(s.q_batch, head, i)[at]);
      default: return job.bias.at<const float>(s.q_batch, head, i)[at];
    }
  }
  const std::int64_t relative = j - (i + s.offset);
  if (job.slopes != nullptr) {
    const float slope = job.slopes[sequence * job.slopes_batch + head * job.slopes_head];
    return -slope * static_cast<float>(relative < 0 ? -relative : relative);
  }
  if (job.table != nullptr) {
    const std::int64_t reach = job.bucket_reach;
    return job.diagonal[head * (2 * reach + 1) + reach + clamped(relative, reach)];
  }
  return 0;
}

__device__ inline Score score_of(const AttentionJob& job, const Sequence& s, int sequence, int head,
                                 std::int64_t i, std::int64_t j, float dot) {
  Score score;
  score.visible = i < s.q_rows && j < s.k_rows && is_visible(job, s, head, i, j);
  if (!score.visible) return score;
  score.a = job.scale * dot;
  score.s = job.softcap > 0 ? job.softcap * tanhf(score.a / job.softcap) : score.a;
  const float bias = bias_of(job, s, sequence, head, i, j);
  if (bias == -INFINITY) score.visible = false;
  score.s += bias;
  return score;
}

// Of neighbouring keys from j on: what each weight is multiplied by.
template <int kCount>
__device__ inline void dropout_of(const AttentionJob& job, int sequence, int head, std::int64_t i,
                                  std::int64_t j, float (&keep)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const bool is_kept =
        job.dropout.keeps(sequence, head, static_cast<int>(i), static_cast<int>(j) + c);
    keep[c] = is_kept ? job.dropout.kept : 0.0f;
  }
}

// Keys that rows [first, last] can see, and rows that can see keys [first, last]: everything
// outside is hidden.
struct Range {
  std::int64_t begin, end;
};
__device__ inline Range keys_seen(const AttentionJob& job, const Sequence& s, std::int64_t first,
                                  std::int64_t last) {
  if (first >= s.q_seeing) return {0, 0};
  Range keys{0, s.k_visible};
  if (job.causal) keys.end = min(keys.end, last + s.offset + 1);
  if (!job.has_global()) {
    if (job.left >= 0) keys.begin = max(std::int64_t{0}, first + s.offset - job.left);
    if (job.right >= 0) keys.end = min(keys.end, last + s.offset + job.right + 1);
  }
  return keys;
}
__device__ inline Range rows_seeing(const AttentionJob& job, const Sequence& s, std::int64_t first,
                                    std::int64_t last) {
  if (first >= s.k_visible) return {0, 0};
  Range rows{0, s.q_seeing};
  if (job.causal) rows.begin = max(rows.begin, first - s.offset);
  if (!job.has_global()) {
    if (job.left >= 0) rows.end = min(rows.end, last - s.offset + job.left + 1);
    if (job.right >= 0) rows.begin = max(rows.begin, first - s.offset - job.right);
  }
  return rows;
}

}  // namespace qkv::cuda
