// An attention call after src/ops has checked it: every default resolved, dense and packed inputs
// in one form. This is all that a kernel sees.
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/attention.h"

namespace qkv {

// One sequence: its rows within the (possibly packed) tensors, and where its diagonal lies.
struct AttentionSequence {
  std::int64_t q_batch = 0, k_batch = 0;  // index along the batch axis (0 when packed)
  std::int64_t q_start = 0, k_start = 0;  // first row (0 when dense)
  std::int64_t q_rows = 0, k_rows = 0;    // rows to write, keys present
  std::int64_t q_seeing = 0;              // rows from here on see nothing (query lengths)
  std::int64_t k_visible = 0;             // keys from here on are hidden (key lengths)
  std::int64_t offset = 0;                // o: query i stands at key position i + o
};

struct AttentionProblem {
  Tensor q, k, v;  // [B, H, S, D] views; packed sequences are [1, H, T, D]. v undefined: weights
  Tensor k_scale, v_scale;  // f32 [B, Hk, Sk], of i8 keys and values that lie as rows; or undefined
  std::int64_t heads = 0, key_heads = 0, head_size = 0, value_size = 0;
  std::vector<AttentionSequence> sequences;
  // i32 [B, N], contiguous, on the CPU, checked: k and v are pools of pages [P, Hk, page, D] then,
  // and the keys of a sequence are those of its row of pages, one after the other.
  Tensor pages;
  // i32 [B] on the device of q: k_visible of each sequence, and the offset that follows from it
  // where the last query sees the last key; `sequences` hold all keys then. Undefined where the
  // host knows them.
  Tensor key_lengths;

  float scale = 1, softcap = 0, dropout = 0;
  std::uint64_t seed = 0;
  bool causal = false;
  std::int64_t left = -1, right = -1;
  Tensor allowed;  // boolean [B, H, Sq, Sk] by expand (strides may be 0), or undefined
  // Of a window, undefined and 0 without one. Positions are boolean [B, Sk] by expand.
  Tensor global_positions;
  std::int64_t global_first = 0;  // at most Sk
  Tensor bias;                    // floating [B, H, Sq, Sk] by expand, or undefined
  Tensor slopes;                  // f32 [B, H] by expand, or undefined
  Tensor table;                   // f32 [buckets, H], or undefined
  bool bidirectional = true;
  std::int64_t max_distance = 128;
  Tensor sinks;  // f32 [H] contiguous, or undefined
  bool deterministic = true;
  bool tf32 = false;  // f32 products may round what they multiply to TF32

  std::int64_t group() const { return heads / key_heads; }
  bool has_global() const { return global_positions.defined() || global_first > 0; }
  bool has_diagonal_bias() const { return slopes.defined() || table.defined(); }
};

// Row statistics are [B, H, S] with the layout of lse; undefined where not asked for.
struct AttentionResults {
  Tensor out;  // [B, H, S, Dv] or [1, H, T, Dv]
  Tensor lse;  // f32 [B, H, S] or [1, H, T]
  AttentionStatistics statistics;
};

struct AttentionBackward {
  Tensor dout, out, lse;           // as in AttentionResults
  Tensor dlse, dentropy, entropy;  // f32 like lse, or undefined
  Tensor dq, dk, dv;               // written; any strides of q, k, v
  Tensor dbias;                    // f32, [B, H, Sq, Sk] before broadcasting (extent 1 = summed)
  Tensor dslopes, dtable;          // f32 [B or 1, H], [buckets, H]
  Tensor dsinks;                   // f32 [H]
};

struct AttentionWeights {
  std::vector<std::int64_t> heads, rows;
  std::int64_t pool_rows = 1, pool_keys = 1;
  Tensor weights;  // f32 [B, heads, ceil(rows / pool_rows), ceil(Sk / pool_keys)]
};

}  // namespace qkv
