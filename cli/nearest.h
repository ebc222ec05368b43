// What a misspelt name was probably meant to be.
#pragma once

#include <string>
#include <vector>

namespace qkv::cli {

// The nearest name, or "" when none is near: a third of its letters inserted, removed, replaced or
// swapped with their neighbour at most (one in any case), or the beginning of a name.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or "".
std::string advice(const std::string& word, const std::vector<std::string>& names);

}  // namespace qkv::cli
