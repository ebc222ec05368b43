// From a word to tokens: tokenizer.json's `model`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"
#include "text/workspace.h"

namespace qkv::text {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of a word that is not empty; their bytes count from its beginning. Without
  // `spans` the bytes may be left 0.
  virtual void tokenize(std::string_view word, bool spans, Workspace& work,
                        std::vector<Token>& tokens) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual TokenId unknown() const = 0;   // kNoToken when there is none
  virtual std::string kind() const = 0;  // "BPE"
};
using ModelPtr = std::unique_ptr<const Model>;

// The token of a byte where there is no other: "<0x0A>".
std::string byte_token(unsigned char byte);
// The byte of such a token, -1 when it is none.
int byte_of_token(std::string_view token);

}  // namespace qkv::text
