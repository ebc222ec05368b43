// How a tokenizer finds words: tokenizer.json's `pre_tokenizer`.
#pragma once

#include <memory>
#include <string>

#include "io/json.h"
#include "text/split.h"

namespace qkv::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts the parts further, or rewrites text and parts; `spare` is memory to work in.
  virtual void apply(Words& words, Words& spare) const = 0;
};
using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

struct PreTokenizerOptions {
  // Leave to the model what ByteLevel does last: writing bytes as characters.
  bool bytes_stay_bytes = false;
};

// Throws Error that names what is not supported.
PreTokenizerPtr make_pre_tokenizer(const Config& config, const PreTokenizerOptions& options);

// The families that rewrite text, in a file each; null when the type is another's.
PreTokenizerPtr make_byte_level(const Config& config, const PreTokenizerOptions& options);
PreTokenizerPtr make_metaspace(const Config& config);

// True when ByteLevel is what the words go through last.
bool ends_with_byte_level(const Config& config);
// True when it asks where a word stood in the text that was given.
bool asks_for_origin(const Config& config);

}  // namespace qkv::text
