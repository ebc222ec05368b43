#include "text/train.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <unordered_map>

#include "core/check.h"
#include "text/gpt2_words.h"
#include "text/json_pipeline.h"
#include "text/utf8.h"

namespace qkv {
namespace {

using text::CountedWord;

// Every word of the files with its count, in the order of their bytes.
std::vector<CountedWord> count_words(const std::vector<std::string>& files,
                                     const TokenizerTraining& training) {
  std::unordered_map<std::string, std::int64_t> counts;
  std::vector<text::Part> parts;
  std::string line;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::ifstream file(files[i], std::ios::binary);
    check(file.good(), "train_tokenizer: {} cannot be read", files[i]);
    while (std::getline(file, line)) {
      if (!text::is_valid_utf8(line)) line = text::repaired_utf8(line);
      parts.clear();
      text::append_gpt2_words(line, {0, line.size()}, parts);
      for (const text::Part& part : parts) ++counts[line.substr(part.begin, part.end - part.begin)];
    }
    check(!file.bad(), "train_tokenizer: {} cannot be read", files[i]);
    const double done = static_cast<double>(i + 1) / static_cast<double>(files.size());
    check(!training.on_progress || training.on_progress(done / 2, "counting words"),
          "train_tokenizer: stopped");
  }
  std::vector<CountedWord> words;
  words.reserve(counts.size());
  for (const auto& [word, count] : counts) words.push_back({word, count});
  std::ranges::sort(words, {}, &CountedWord::bytes);
  return words;
}

}  // namespace

Tokenizer train_tokenizer(const std::vector<std::string>& files,
                          const TokenizerTraining& training) {
  check(!files.empty(), "train_tokenizer: no files to learn from");
  check(training.size > 0 && training.size <= text::kLargestId,
        "train_tokenizer: size must be from 1 to {}, got {}", text::kLargestId, training.size);
  check(training.kind == TokenizerKind::byte_level_bpe,
        "train_tokenizer: only byte-level BPE can be trained so far, not Unigram");
  TokenizerTraining resolved = training;
  if (resolved.special_tokens.empty()) resolved.special_tokens = {"<|endoftext|>"};
  const std::set<std::string> distinct(resolved.special_tokens.begin(),
                                       resolved.special_tokens.end());
  check(distinct.size() == resolved.special_tokens.size() && !distinct.contains(""),
        "train_tokenizer: special tokens must differ and not be empty");
  return Tokenizer(std::make_shared<text::JsonPipeline>(
      text::train_byte_level_bpe(count_words(files, resolved), resolved)));
}

}  // namespace qkv
