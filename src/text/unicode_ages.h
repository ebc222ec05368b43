// Characters that are younger than the table a tokenizer was made with. The Hugging Face library
// takes punctuation and nonspacing marks from Unicode 8, decompositions from Unicode 9 and letters
// from Unicode 16 and graphemes from Unicode 17, while utf8proc has Unicode 15: ids are equal only
// if both differences are known.
#pragma once

#include "text/unicode.h"

namespace qkv::text {

Category category_since_15(char32_t c);  // of what Unicode 15 left unassigned; cn if it still is

bool is_nonspacing_since_8(char32_t c);
bool is_mark_since_9(char32_t c);
bool is_punctuation_since_8(char32_t c);
bool is_format_since_8(char32_t c);
bool extends_grapheme_since_15(char32_t c);
bool is_decomposed_since_9(char32_t c);

}  // namespace qkv::text
