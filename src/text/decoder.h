// From tokens back to text: tokenizer.json's `decoder`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/json.h"

namespace qkv::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // What is left, one after the other, is the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};
using DecoderPtr = std::unique_ptr<const Decoder>;

// Throws Error that names what is not supported.
DecoderPtr make_decoder(const Config& config);

}  // namespace qkv::text
