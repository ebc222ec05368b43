// GPT-2's pattern by hand, for it cuts most of the text that is ever tokenized:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <string_view>
#include <vector>

#include "text/split.h"

namespace qkv::text {

void append_gpt2_words(std::string_view text, const Part& part, std::vector<Part>& words);

}  // namespace qkv::text
