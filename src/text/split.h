// Cutting text into parts at matches, and what becomes of the matches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/aligned_text.h"

namespace qkv::text {

struct Part {
  std::size_t begin = 0, end = 0;  // bytes
};

// Text with the parts of it that are words so far, in order.
struct Words {
  AlignedText text;
  std::vector<Part> parts;
  std::size_t offset = 0;  // of the text in what was given, where no origins are kept
};

struct Piece {
  Part part;
  bool is_match = false;
};

enum class SplitBehavior : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};
// "Removed", "Isolated", ...; Error names another, and `where` it stands.
SplitBehavior split_behavior(const std::string& name, const std::string& where);

// Appends the parts that `pieces`, which cover a text from left to right, become; none is empty.
void join_pieces(std::vector<Piece>& pieces, SplitBehavior behavior, std::vector<Part>& parts);

}  // namespace qkv::text
