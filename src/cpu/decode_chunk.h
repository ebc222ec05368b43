// One chunk of keys of a decode: the part that is compiled per SIMD target.
#pragma once

#include <cstdint>

#include "core/attention_problem.h"
#include "cpu/attention_block.h"
#include "cpu/attention_plan.h"
#include "cpu/decode_engine.h"
#include "cpu/int8_decode.h"

namespace qkv::cpu {

// Enough keys for the sums over them to be long, few enough to stay in a core's cache.
inline constexpr std::int64_t kChunkKeys = 256;
inline constexpr std::int64_t kMostRows = DecodeEngine::kMostRows;

// What a chunk found out about a row besides its sums of p v, all relative to its own maximum.
struct RowPart {
  float maximum = 0, total = 0;
  BlockSums sums;       // max_logit, pairs, mean and deviation; with statistics only
  double weighted = 0;  // sum of p log p
  std::int64_t top = -1;
};

// The rows of one key head: all queries of all heads of its group.
struct DecodeJob {
  const AttentionProblem& problem;
  const DecodeEngine* engine;  // for bf16, or null
  const Int8Decode* bytes;     // for int8, or null
  bool collect;                // statistics
  std::int64_t sequence, key_head, chunk;
  float* values;   // [rows][Dv]: sums of p v
  RowPart* parts;  // [rows]
  float* weights;  // [rows][kChunkKeys], or null
};

// Some neighbouring keys of a sequence.
struct KeyRun {
  std::int64_t sequence, key_head, first, count;
};
// Where they, or their values, lie. Those of several pages are put together in `room` first, for
// which there is room in a core's cache.
Rows key_rows(const AttentionProblem& problem, const Tensor& x, const KeyRun& run,
              Scratch<std::byte>& room);

void run_decode_chunk(const DecodeJob& job);
// Row `row` of a tensor = f32 values rounded to its dtype.
void store_decoded_row(const float* from, std::int64_t count, const Rows& to, std::int64_t row);

}  // namespace qkv::cpu
