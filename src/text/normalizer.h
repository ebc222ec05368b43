// What a tokenizer does to text before it looks for words: tokenizer.json's `normalizer`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/aligned_text.h"
#include "text/allowance.h"
#include "text/component.h"

namespace qkv::text {

class Normalizer : public Component {
 public:
  // `spare` is memory to work in; what it holds afterwards means nothing. Throws Error that names
  // the component when the text takes more work or becomes longer than is allowed.
  void apply(AlignedText& text, AlignedText& spare, Allowance& allowance) const {
    allowance.spend(kStepsOfComponent + text.text.size(), where());
    rewrite(text, spare, allowance);
    allowance.check_bytes(text.text.size(), where());
  }

 protected:
  virtual void rewrite(AlignedText& text, AlignedText& spare, Allowance& allowance) const = 0;
};
using NormalizerPtr = std::unique_ptr<Normalizer>;

// Throws Error that names what is not supported.
NormalizerPtr make_normalizer(const Config& config);

// The families of normalizers, in a file each; null when the type is another's.
NormalizerPtr make_bert_normalizer(const Config& config);
NormalizerPtr make_charsmap_normalizer(const Config& config);

}  // namespace qkv::text
