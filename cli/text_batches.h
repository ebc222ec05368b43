// Texts through an encoder: tokenised, cut to what the model can read, and run in batches of
// similar length, so that little of a batch is padding.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "qkv/models/model.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {

struct TextBatch {
  std::vector<std::size_t> texts;       // row i is of text texts[i]
  std::vector<const Encoding*> tokens;  // of each row
  ModelInput input;
  ModelOutput output;
};

struct TextBatchOptions {
  std::string doing = "encoding";  // what the progress is called
  std::size_t batch = 32;
  bool may_cut = true;  // else a text that is too long is an Error
};

// Calls `each` for every batch, in no order a caller could rely on. Texts that had to be cut are
// told of in one warning.
void run_texts(const Model& model, const Tokenizer& tokenizer,
               const std::vector<std::string>& texts, const TextBatchOptions& options,
               const std::function<void(const TextBatch&)>& each);

}  // namespace qkv::cli
