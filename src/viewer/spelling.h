// Tokens as they are shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "qkv/viewer.h"

namespace qkv::viewer {

// One line, something to see, and nothing that could take over a terminal: spaces around it are
// dropped, a line end is "⏎", other control characters and broken UTF-8 are "�", nothing is "␣".
std::string printable(std::string_view text);

// Columns it takes in a terminal: combining characters none, wide ones two.
std::int64_t columns_of(std::string_view text);
// Its beginning in so many columns, padded with spaces, cut with "…".
std::string fitted(std::string_view text, std::int64_t columns);

std::vector<SeenToken> spelt(const std::vector<std::int64_t>& ids,
                             const std::function<std::string(std::int64_t)>& name);

// With ids for what the caller has no names for.
TokenSpelling complete(const TokenSpelling& given);

}  // namespace qkv::viewer
