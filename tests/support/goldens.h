// The tiny checkpoints of tests/data/goldens.
#pragma once

#include <string>
#include <vector>

namespace qkv::test {

inline std::string golden(const std::string& name) { return QKV_TEST_DATA "/goldens/" + name; }

inline const std::vector<std::string> kGoldens{
    "bart",   "bert-classifier", "bert-masked-lm", "bert-model", "distilbert", "gemma2",  "gpt2",
    "llama",  "longformer",      "marian",         "mistral",    "qwen3",      "roberta", "t5",
    "t5-v1.1"};
inline const std::vector<std::string> kDecoderGoldens{"gpt2", "llama", "mistral", "qwen3",
                                                      "gemma2"};

}  // namespace qkv::test
