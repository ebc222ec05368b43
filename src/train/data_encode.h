// Texts to tokens, with what a model wants around them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/token_file.h"
#include "models/source_tokens.h"
#include "qkv/data.h"
#include "train/data_text.h"

namespace qkv::data {

// A chunk of a file as examples.
class Encoder {
 public:
  // Error when the model cannot do the task, or lacks a token that it takes.
  Encoder(const DataOptions& options, const Tokenizer& tokenizer, const ModelInfo& model);

  TokenPart encode(const TextFile& file, const TextChunk& chunk) const;
  // Where the chunks of a file may end.
  Documents chunks_of() const;
  // All that what encode() returns depends on besides the file.
  std::string key() const;

 private:
  struct Line;
  void add_line(const Line& line, TokenPart& part) const;
  void add_document(std::string_view text, bool begins, bool ends, TokenPart& part) const;
  void add_ids(const Ids& ids, TokenPart& part) const;
  Ids side(std::string_view text) const;  // of a pair, or the text that has a label
  std::int32_t label(std::string_view name, const Line& line) const;
  bool is_pairs() const { return options_.task == Task::sequence_to_sequence; }
  bool is_labelled() const { return options_.task == Task::classification; }

  DataOptions options_;
  Tokenizer tokenizer_;
  ModelInfo model_;
  std::int64_t bos_ = -1, eos_ = -1;  // around a document or a text; -1: none
  std::int64_t limit_ = 0;            // tokens of a labelled text
};

}  // namespace qkv::data
