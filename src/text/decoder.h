// From tokens back to text: tokenizer.json's `decoder`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/allowance.h"
#include "text/component.h"

namespace qkv::text {

class Decoder : public Component {
 public:
  // What is left, one after the other, is the text. Throws Error that names the component when
  // that takes more work or text than is allowed.
  void apply(std::vector<std::string>& tokens, Allowance& allowance) const;

 protected:
  virtual void rewrite(std::vector<std::string>& tokens, Allowance& allowance) const = 0;
};
using DecoderPtr = std::unique_ptr<Decoder>;

// Throws Error that names what is not supported.
DecoderPtr make_decoder(const Config& config);

}  // namespace qkv::text
