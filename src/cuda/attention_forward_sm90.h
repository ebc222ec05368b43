// Attention forward for Hopper GPUs: bf16 and f16 through the tensor cores' warpgroup products.
// docs/cuda.md shows how it is laid out. It serves what can be written as one interval of keys per
// row (causal, windows, lengths, packed sequences), grouped heads, softcap, sinks, and every
// statistic; or else one of a bias, a mask of pairs and dropout. What combines them goes to other
// kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "cuda/pair_dropout.cuh"
#include "qkv/dtype.h"

namespace qkv::cuda {

// AttentionSequence in the device's words.
struct Sm90Sequence {
  std::int32_t q_batch = 0, k_batch = 0;  // index along the batch axis (0 when packed)
  std::int32_t q_start = 0, k_start = 0;  // first row (0 when dense)
  std::int32_t q_rows = 0, k_rows = 0;    // rows to write, keys present
  std::int32_t q_seeing = 0;              // rows from here on see nothing
  std::int32_t k_visible = 0;             // keys from here on are hidden
  std::int32_t offset = 0;                // query i stands at key position i + offset
};

inline constexpr int kSm90Tickets = 16384;

struct Sm90Strides {  // in elements; the last axis is contiguous
  std::int64_t batch = 0, head = 0, row = 0;
};

// What the weights of a row are made of: p = 2^((s - top) scale log2(e) + share), where s and top
// are products. A row that sees nothing has a share of -inf.
struct alignas(8) Sm90RowTerms {
  float top, share;
};

// Where statistics go (qkv/attention.h); null: not asked for. top_index costs most.
struct Sm90Statistics {
  float* entropy = nullptr;  // [q_batches, heads, q_rows], like lse
  float* top_weight = nullptr;
  std::int32_t* top_index = nullptr;
  float* max_logit = nullptr;  // [sequences, heads]
  float* score_mean = nullptr;
  float* score_var = nullptr;
  float* entropy_mean = nullptr;
  float* entropy_relative = nullptr;
  float* saturation = nullptr;
  float* received = nullptr;  // [k_batches, heads, k_rows]
  void* workspace = nullptr;  // sm90_statistics_workspace bytes on the device

  // The largest logit is at hand in every forward pass; the rest is what a watch puts together.
  bool need_a_watch() const {
    return entropy || top_weight || saturation || received || need_moments();
  }
  bool need_moments() const { return score_mean || score_var; }
};

// What is said of single pairs.
enum class Said { nothing, bias, mask, distance, dropout };

struct Sm90Pairs {
  Said said = Said::nothing;
  // A bias of the dtype of q, or a mask of bytes: [batches, heads, q_rows, k_rows], where one batch
  // or head serves all.
  const void* data = nullptr;
  std::int64_t batches = 1, heads = 1;
  Sm90Strides strides;
  // By distance: -slope |j - i|, one slope for each sequence and head; or, without slopes, what is
  // added at distances -reach .. reach and, as there, beyond: [heads][2 reach + 1].
  const float* slopes = nullptr;
  std::int64_t slopes_batch = 0, slopes_head = 0;
  const float* diagonal = nullptr;
  int reach = 0;
  PairDropout dropout{};
};

struct Sm90Forward {
  DType dtype = DType::bf16;
  const void* q = nullptr;       // [q_batches, heads, q_rows, head_size]
  const void* k = nullptr;       // [k_batches, key_heads, k_rows, head_size]
  const void* v = nullptr;       // the same shape
  void* out = nullptr;           // [q_batches, heads, q_rows, head_size]
  float* lse = nullptr;          // [q_batches, heads, q_rows] contiguous, or null
  const float* sinks = nullptr;  // [heads], or null
  Sm90Strides q_strides, k_strides, v_strides, out_strides;
  std::int64_t q_batches = 0, k_batches = 0, heads = 0, key_heads = 0, q_rows = 0, k_rows = 0;
  std::int64_t head_size = 0, value_size = 0;

  float scale = 1, softcap = 0;
  Sm90Pairs pairs;
  std::int64_t left = -1, right = -1;  // -1 = unbounded; causal is right = 0

  std::int64_t sequence_count = 0;
  std::int64_t longest = 0, longest_keys = 0;  // the most q_rows, and k_rows, of a sequence
  // On the device. Null: sequence b is `all_alike` with batch b of q and k.
  const Sm90Sequence* sequences = nullptr;
  Sm90Sequence all_alike;

  // On the device: `pages_each` for each sequence; K and V are pools of pages of `page_rows` keys
  // then, k_batches of them, and k_rows is what the pages of a sequence hold. Decoding only.
  const std::int32_t* pages = nullptr;
  std::int64_t page_rows = 0, pages_each = 0;
  // On the device, one for each sequence: k_visible, and what offset follows from it. Null: as the
  // sequences say. Decoding only.
  const std::int32_t* key_lengths = nullptr;

  std::optional<Sm90Statistics> statistics;

  // On the device: kSm90Tickets zeros, which are zeros again afterwards. Calls that may overlap
  // need their own.
  std::uint32_t* ticket = nullptr;
};

// Null when attention_forward_sm90 can serve this call, else the reason why not.
const char* why_not_sm90_forward(const Sm90Forward& call);
std::int64_t sm90_statistics_workspace(const Sm90Forward& call);
void attention_forward_sm90(const Sm90Forward& call, cudaStream_t stream);
// Its part for calls that say something of pairs.
const char* why_not_sm90_pairs(const Sm90Forward& call);
void attention_pairs_sm90(const Sm90Forward& call, cudaStream_t stream);

}  // namespace qkv::cuda
