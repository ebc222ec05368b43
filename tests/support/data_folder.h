// Files to train on, tokenizers whose tokens are words, and models that only say what they are.
#pragma once

#include <string>
#include <vector>

#include "qkv/data.h"
#include "support/temporary_folder.h"

namespace qkv::testing {

using Ids = std::vector<std::int64_t>;

class DataFolder {
 public:
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& name) const;
  std::string path(const std::string& name) const { return folder_.path(name); }

  // The id of 'a' is 5, of 'b' 6, and so on; 0 is padding, 1 </s>, 2 unknown, 3 the mask and 4
  // >>x<<. With a template, 1 is [SEP] and 4 is [CLS], which are put around every text.
  Tokenizer tokenizer(bool with_template = false) const;

  // `count` lines of a source and a target of 1 to `longest` words each, all different.
  std::string pairs(const std::string& name, int count, int longest = 12) const;

 private:
  TemporaryFolder folder_;
};

// Of 31 tokens and 64 positions, with eos 1, padding 0 and 0 to begin the decoder with.
ModelInfo model_info(ModelKind kind);
// With the labels "bad", "good" and "fine".
ModelInfo classifier_info();

// What a batch says, to compare.
std::string shown(const Batch& batch);
std::string shown(const Dataset& data, std::int64_t epoch);

// The rows of a tensor [B, S].
std::vector<Ids> rows_of(const Tensor& tensor);

}  // namespace qkv::testing
