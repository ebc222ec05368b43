// Who sees whom, for a block of query rows against tiles of keys. Causal, window and lengths make
// one interval of keys per row, so most tiles are settled by comparing a few integers; only global
// positions and boolean masks need a byte per pair.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_problem.h"

namespace qkv::cpu {

enum class TileKind : std::uint8_t { hidden, partial, full };

struct KeyInterval {
  std::int64_t begin = 0, end = 0;  // empty when end <= begin
};

// The rows [first, first + count) of one (sequence, head), or any list of rows.
class BlockMask {
 public:
  BlockMask(const AttentionProblem& problem, std::int64_t sequence);

  // Chooses the head and the rows that the calls below speak of.
  void set_rows(std::int64_t head, const std::int64_t* rows, std::int64_t count);

  // Keys outside [begin, end) are hidden from every row of the block.
  KeyInterval reach() const { return reach_; }
  TileKind classify(std::int64_t key_begin, std::int64_t key_end) const;

  // The keys row r sees in one interval; with bytes() a pair must also be set there.
  const KeyInterval& interval(std::int64_t r) const { return intervals_[r]; }
  // Whether intervals alone do not tell.
  bool needs_bytes() const { return needs_bytes_; }
  // visible[j - key_begin] = 1 or 0 for row r.
  void write_bytes(std::int64_t r, std::int64_t key_begin, std::int64_t key_end,
                   std::uint8_t* visible) const;

 private:
  bool is_global(std::int64_t position) const;
  std::int64_t global_before(std::int64_t position) const;  // how many global positions < position

  const AttentionProblem& problem_;
  const AttentionSequence& sequence_;
  std::int64_t batch_;
  std::vector<std::int64_t> global_count_;  // prefix sums; empty without global positions
  bool needs_bytes_;
  bool all_alike_;  // rows, as far as intervals tell
  std::int64_t head_ = 0;
  std::vector<std::int64_t> rows_;
  std::vector<KeyInterval> intervals_;  // without the global keys
  std::vector<std::int64_t> ends_;      // causal and length bound alone: global keys end here
  KeyInterval reach_, common_;
  KeyInterval near_;  // what intervals_ reach, global keys aside
};

}  // namespace qkv::cpu
