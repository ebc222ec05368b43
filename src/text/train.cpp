#include "text/train.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <unordered_map>

#include "core/check.h"
#include "io/shown.h"
#include "text/gpt2_words.h"
#include "text/json_pipeline.h"
#include "text/settings.h"
#include "text/utf8.h"

namespace qkv {
namespace {

using text::CountedWord;

// What finds the words of a line, as the tokenizer to come will.
class WordFinder {
 public:
  WordFinder(TokenizerKind kind, const std::vector<std::string>& special_tokens) {
    if (kind == TokenizerKind::byte_level_bpe) return;
    const text::TokenizerFile file = text::TokenizerFile::from_settings(
        text::trained_unigram_settings(special_tokens), "the tokenizer to train");
    normalizer_ = text::make_normalizer(file.config.object("normalizer"));
    pre_tokenizer_ = text::make_pre_tokenizer(file.config.object("pre_tokenizer"), {});
  }

  // f(word) for each.
  template <class F>
  void for_each(const std::string& line, F&& f) {
    text::AlignedText& found = words_.text;
    found.clear();
    found.append_given(line, 0);
    text::Allowance allowance(line.size());
    words_.parts.clear();
    if (normalizer_) {
      normalizer_->apply(found, spare_.text, allowance);
      words_.parts.push_back({0, found.text.size()});
      pre_tokenizer_->apply(words_, spare_, allowance);
    } else {
      text::append_gpt2_words(found.text, {0, found.text.size()}, words_.parts);
    }
    for (const text::Part& part : words_.parts) {
      if (part.end > part.begin) f(found.text.substr(part.begin, part.end - part.begin));
    }
  }

 private:
  text::NormalizerPtr normalizer_;
  text::PreTokenizerPtr pre_tokenizer_;
  text::Words words_, spare_;
};

// Every word of the files with its count, in the order of their bytes.
std::vector<CountedWord> count_words(const std::vector<std::string>& files,
                                     const TokenizerTraining& training) {
  std::unordered_map<std::string, std::int64_t> counts;
  WordFinder finder(training.kind, training.special_tokens);
  std::string line;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::ifstream file(files[i], std::ios::binary);
    check(file.good(), "train_tokenizer: {} cannot be read", files[i]);
    while (std::getline(file, line)) {
      finder.for_each(line, [&](const std::string& word) { ++counts[word]; });
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
  const bool is_unigram = training.kind == TokenizerKind::unigram;
  TokenizerTraining resolved = training;
  std::vector<std::string>& special = resolved.special_tokens;
  if (special.empty() && is_unigram) special = {"<pad>", "</s>", "<unk>"};
  if (special.empty()) special = {"<|endoftext|>"};
  if (is_unigram && std::ranges::find(special, "<unk>") == special.end()) {
    special.emplace_back("<unk>");
  }
  const std::set<std::string> distinct(resolved.special_tokens.begin(),
                                       resolved.special_tokens.end());
  check(distinct.size() == resolved.special_tokens.size() && !distinct.contains(""),
        "train_tokenizer: special tokens must differ and not be empty");
  for (const std::string& token : distinct) {
    check(text::is_valid_utf8(token), "train_tokenizer: special token '{}' is not UTF-8",
          shown_name(token));
  }
  const std::vector<CountedWord> words = count_words(files, resolved);
  return Tokenizer(std::make_shared<text::JsonPipeline>(
      is_unigram ? text::train_unigram(words, resolved)
                 : text::train_byte_level_bpe(words, resolved)));
}

}  // namespace qkv
