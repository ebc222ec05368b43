// Text to text by an encoder-decoder, many at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qkv/models/model.h"
#include "qkv/tokenizer.h"

namespace qkv {

// What an encoder-decoder reads for a text, as a Dataset of pairs has it: with the prefix behind
// what the tokenizer's template puts first, and with eos at the end.
std::vector<std::int64_t> source_tokens(const Tokenizer& tokenizer, const ModelInfo& model,
                                        const std::string& text, const std::string& prefix = {});

struct TranslateOptions {
  // Absent: as the checkpoint says, else 4 beams and 1. Nothing is sampled.
  std::optional<std::int64_t> beams{};
  std::optional<double> length_penalty{};
  std::int64_t max_new_tokens = 0;   // 0: twice the source and 16 more
  std::int64_t batch_tokens = 4096;  // of the sources that run together, padding included
  std::string prefix{};              // a token put before each source, as ">>fra<<"
  // Called after each batch; false ends with what there is, the others being empty.
  std::function<bool(std::size_t done, std::size_t total)> on_batch{};
  // Called before each token of a batch; false ends likewise, without the outputs of this batch.
  std::function<bool()> on_step{};
};
// The outputs in the order of the texts; an empty text has an empty one. Texts of similar length
// run together. Error when the model is no encoder-decoder.
std::vector<std::string> translate(const Model& model, const Tokenizer& tokenizer,
                                   const std::vector<std::string>& texts,
                                   const TranslateOptions& options = {});

}  // namespace qkv
