// The settings that go with vocabularies which come without any.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer_file.h"

namespace qkv::text {

using VocabularyEntries = std::vector<TokenizerFile::Entry>;

// For vocab.json and merges.txt: those of GPT-2; of RoBERTa, when it has that one's special tokens.
std::string gpt2_settings(const VocabularyEntries& vocabulary);
// For a byte-level BPE tokenizer trained here; special tokens have the first ids.
std::string trained_bpe_settings(const std::vector<std::string>& special_tokens);
// The same for a Unigram tokenizer; one of the special tokens is <unk>.
std::string trained_unigram_settings(const std::vector<std::string>& special_tokens);
// For vocab.txt: those of BERT, which takes case away unless a token has it.
std::string bert_settings(const VocabularyEntries& vocabulary);

}  // namespace qkv::text
