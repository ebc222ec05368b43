// How a tokenizer finds words: tokenizer.json's `pre_tokenizer`.
#pragma once

#include <memory>
#include <string>

#include "io/json.h"
#include "text/allowance.h"
#include "text/component.h"
#include "text/split.h"

namespace qkv::text {

class PreTokenizer : public Component {
 public:
  // Cuts the parts further, or rewrites text and parts; `spare` is memory to work in. Throws Error
  // that names the component when that takes more work or text than is allowed.
  void apply(Words& words, Words& spare, Allowance& allowance) const {
    allowance.spend(kStepsOfComponent + words.text.text.size() + words.parts.size(), where());
    cut(words, spare, allowance);
    allowance.check_bytes(words.text.text.size(), where());
  }

 protected:
  virtual void cut(Words& words, Words& spare, Allowance& allowance) const = 0;
};
using PreTokenizerPtr = std::unique_ptr<PreTokenizer>;

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
