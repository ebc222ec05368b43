// Blocks of query rows against all the keys they see: the inner loop of forward, and of looking
// at weights.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/attention_problem.h"
#include "cpu/attention_engine.h"
#include "cpu/attention_mask.h"
#include "cpu/attention_plan.h"
#include "cpu/prefetch.h"
#include "cpu/scratch.h"

namespace qkv::cpu {

// K and V of one (sequence, key head), packed tile by tile as the engine wants them.
struct PackedTiles {
  std::int64_t key_bytes = 0, value_bytes = 0;  // of one tile
  std::byte* keys = nullptr;
  std::byte* values = nullptr;            // null when only weights are wanted
  std::uint8_t* values_finite = nullptr;  // per tile; what is not finite is packed as 0
};

// Bytes of one packed tile of keys and of values.
PackedTiles packed_sizes(const AttentionProblem& problem, const AttentionEngine& engine);
// Packs tile `tile` of (sequence, key head) into its place.
void pack_tile(const AttentionProblem& problem, const AttentionEngine& engine,
               const PackedTiles& packed, std::int64_t sequence, std::int64_t key_head,
               std::int64_t tile);

// The keys of one (sequence, head), packed, for blocks that want scores and no values.
class PackedKeys {
 public:
  PackedKeys(const AttentionProblem& problem, const AttentionEngine& engine, std::int64_t sequence,
             std::int64_t head);
  const PackedTiles& tiles() const { return tiles_; }

 private:
  PackedTiles tiles_;
  Scratch<std::byte> keys_;
};

// Sums over the rows of a block, combined in the order of blocks so that any number of threads
// gives the same bits. Moments by Chan et al.: count, mean, sum of squared deviations.
struct BlockSums {
  float max_logit = -std::numeric_limits<float>::infinity();
  double pairs = 0, mean = 0, deviation = 0;
  double rows = 0, entropy = 0, entropy_relative = 0, saturated = 0;

  void add(const BlockSums& other);
};

// The statistics of (sequence, head) number `at` from the sums over all of its rows.
void write_statistics(const AttentionStatistics& statistics, const BlockSums& sums,
                      std::int64_t at);

// `ahead` is asked with every so many rows of a tile: with each, it took longer than it saved.
inline constexpr std::int64_t kAskEvery = 4;

struct BlockJob {
  const AttentionProblem& problem;
  const AttentionEngine& engine;
  const PackedTiles& packed;
  BlockMask& mask;
  DiagonalBias& diagonal;  // its head is set
  std::int64_t sequence, head;
  const std::int64_t* rows;  // of the sequence, done in blocks of engine.tile_rows
  std::int64_t count;

  // Where results go; undefined tensors and null pointers are not written.
  const AttentionResults* results = nullptr;
  BlockSums* sums = nullptr;  // one per block
  float* received = nullptr;  // [k_rows], added to
  float* weights = nullptr;   // [count, k_rows], `weights_stride` apart
  std::int64_t weights_stride = 0;
  // Per row of the job: the largest score, in units of the scale when nothing else was done to it,
  // and the weight of a score equal to it.
  float* maxima = nullptr;
  float* factors = nullptr;
  TensorsAhead* ahead = nullptr;  // what comes next, asked for while rows of a tile are weighed
};

void run_blocks(const BlockJob& job);

}  // namespace qkv::cpu
