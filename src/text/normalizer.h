// What a tokenizer does to text before it looks for words: tokenizer.json's `normalizer`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/aligned_text.h"

namespace qkv::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `spare` is memory to work in; what it holds afterwards means nothing.
  virtual void apply(AlignedText& text, AlignedText& spare) const = 0;
};
using NormalizerPtr = std::unique_ptr<const Normalizer>;

// Throws Error that names what is not supported.
NormalizerPtr make_normalizer(const Config& config);

// The families of normalizers, in a file each; null when the type is another's.
NormalizerPtr make_bert_normalizer(const Config& config);
NormalizerPtr make_charsmap_normalizer(const Config& config);

}  // namespace qkv::text
