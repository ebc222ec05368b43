// Parts of a pattern put together: steps of one after the other, of a choice, of a repetition.
#pragma once

#include <cstdint>
#include <vector>

#include "text/regex.h"

namespace qkv::text {

// Steps that belong together, addressed from their own beginning.
struct Block {
  std::vector<RegexStep> steps;
  bool can_be_empty = true;

  void append(const Block& other);
  std::uint32_t size() const { return static_cast<std::uint32_t>(steps.size()); }
};

struct Repetition {
  std::uint32_t least = 1, most = 1;
  Greed greed = Greed::greedy;
};

// The first of these that leads to a match; there is at least one.
Block choice_of(const std::vector<Block>& choices);
// True when the repetition is one step: of a character, and not lazy.
bool is_run(const Block& piece, const Repetition& repeat);
// Without limit only of what cannot be empty.
Block repeated_block(const Block& piece, const Repetition& repeat);
// op, the steps, accept; and on behind them.
Block enclosed(RegexStep::Op op, std::uint32_t b, const Block& inside, bool can_be_empty);

}  // namespace qkv::text
