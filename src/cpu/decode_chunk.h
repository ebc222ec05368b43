// Chunks of keys of a decode: the part that is compiled per SIMD target.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/attention_problem.h"
#include "cpu/attention_block.h"
#include "cpu/attention_plan.h"
#include "cpu/decode_engine.h"
#include "cpu/int8_decode.h"

namespace qkv::cpu {

// Keys of a chunk. The more, the less often work begins anew; but a machine of many cores should
// find a chunk for each. Neither threads nor the rest of a batch count, so that no bit depends on
// them.
inline constexpr std::int64_t kFewestChunkKeys = 256, kMostChunkKeys = 1024;
static_assert(kMostChunkKeys <= Int8Decode::kMostDepth);
inline std::int64_t chunk_keys(const AttentionProblem& problem, const AttentionSequence& s) {
  constexpr std::int64_t kEnough = 32;  // chunks of a sequence
  const std::int64_t keys = problem.key_heads * s.k_visible / kEnough;
  std::int64_t chunk = kMostChunkKeys;
  while (chunk > std::max(keys, kFewestChunkKeys)) chunk /= 2;
  return chunk;
}
inline constexpr std::int64_t kMostRows = DecodeEngine::kMostRows;

// What a chunk found out about a row besides its sums of p v, all relative to its own maximum.
struct RowPart {
  float maximum = 0, total = 0;
  BlockSums sums;       // max_logit, pairs, mean and deviation; with statistics only
  double weighted = 0;  // sum of p log p
  std::int64_t top = -1;
};

// Where a chunk puts what it found, and the chunks after it.
struct DecodeResult {
  float* values;   // [rows][Dv]: sums of p v
  RowPart* parts;  // [rows]
  float* weights;  // [rows][kMostChunkKeys], or null

  DecodeResult from_row(std::int64_t row, std::int64_t value_size) const {
    return {values + row * value_size, parts + row,
            weights == nullptr ? nullptr : weights + row * kMostChunkKeys};
  }
};

// The rows of one key head (all queries of all heads of its group) against some of its chunks, one
// after the other: what is asked for ahead of one is then what the next reads.
struct DecodeJob {
  const AttentionProblem& problem;
  const DecodeEngine* engine;  // for bf16 or f16, or null
  const Int8Decode* bytes;     // for int8, or null
  bool collect;                // statistics
  bool from_memory;            // keys and values are more than caches hold
  std::int64_t sequence, key_head;
  std::int64_t first, last;  // chunks
  DecodeResult result;       // of the first; that of the next begins result_rows further
  std::int64_t result_rows;
};

// Some neighbouring keys of a sequence.
struct KeyRun {
  std::int64_t sequence, key_head, first, count;
};
// Where they, or their values, lie. Those of several pages are put together in `room` first, for
// which there is room in a core's cache.
Rows key_rows(const AttentionProblem& problem, const Tensor& x, const KeyRun& run,
              Scratch<std::byte>& room);

void run_decode_chunks(const DecodeJob& job);
// Row `row` of a tensor = f32 values rounded to its dtype.
void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row);

}  // namespace qkv::cpu
