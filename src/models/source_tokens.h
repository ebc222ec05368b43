// What an encoder-decoder wants around the texts it reads and writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/models/model.h"
#include "qkv/tokenizer.h"

namespace qkv {

using Ids = std::vector<std::int64_t>;

// What the template of a tokenizer puts before and behind a text: [CLS] and [SEP].
struct Around {
  Ids front{}, back{};
};
Around around_text(const Tokenizer& tokenizer);

// The tokens of a prefix: one where the tokenizer has such a token.
Ids prefix_tokens(const Tokenizer& tokenizer, const std::string& prefix);

// One side of a pair: what the template makes of it, and eos at its end.
Ids encode_side(const Tokenizer& tokenizer, const ModelInfo& model, std::string_view text);

}  // namespace qkv
