// Learning vocabularies.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "qkv/tokenizer.h"
#include "text/tokenizer_file.h"

namespace qkv::text {

struct CountedWord {
  std::string bytes;
  std::int64_t count = 0;
};

// A byte-level BPE tokenizer that cuts words as GPT-2 does. The words are in a fixed order.
TokenizerFile train_byte_level_bpe(const std::vector<CountedWord>& words,
                                   const TokenizerTraining& training);
// A Unigram tokenizer of words that begin with a metaspace, as sentencepiece trains it. Among the
// special tokens is <unk>.
TokenizerFile train_unigram(const std::vector<CountedWord>& words,
                            const TokenizerTraining& training);

}  // namespace qkv::text
