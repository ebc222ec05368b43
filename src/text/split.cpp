#include "text/split.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "io/shown.h"

namespace qkv::text {
namespace {

constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors{{
    {"Removed", SplitBehavior::removed},
    {"Isolated", SplitBehavior::isolated},
    {"MergedWithPrevious", SplitBehavior::merged_with_previous},
    {"MergedWithNext", SplitBehavior::merged_with_next},
    {"Contiguous", SplitBehavior::contiguous},
}};

void append(std::vector<Part>& parts, const Part& part) {
  if (part.begin < part.end) parts.push_back(part);
}

}  // namespace

SplitBehavior split_behavior(const std::string& name, const std::string& where) {
  for (const auto& [known, behavior] : kBehaviors) {
    if (known == name) return behavior;
  }
  fail(
      "{}: '{}' is no way to split; there are Removed, Isolated, MergedWithPrevious, "
      "MergedWithNext and Contiguous",
      where, shown_name(name));
}

void join_pieces(std::vector<Piece>& pieces, SplitBehavior behavior, std::vector<Part>& parts) {
  if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) {
    for (const Piece& piece : pieces) {
      if (behavior == SplitBehavior::isolated || !piece.is_match) append(parts, piece.part);
    }
    return;
  }
  const bool from_right = behavior == SplitBehavior::merged_with_next;
  if (from_right) std::ranges::reverse(pieces);
  std::vector<Part> joined;
  bool previous = false;  // was the piece before a match
  for (const Piece& piece : pieces) {
    const bool joins = behavior == SplitBehavior::contiguous ? piece.is_match == previous
                                                             : piece.is_match && !previous;
    if (joins && !joined.empty()) {
      (from_right ? joined.back().begin : joined.back().end) =
          from_right ? piece.part.begin : piece.part.end;
    } else {
      joined.push_back(piece.part);
    }
    previous = piece.is_match;
  }
  if (from_right) std::ranges::reverse(joined);
  for (const Part& part : joined) append(parts, part);
}

}  // namespace qkv::text
