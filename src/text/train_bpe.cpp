#include <algorithm>
#include <queue>
#include <unordered_map>

#include "core/check.h"
#include "text/byte_alphabet.h"
#include "text/hash.h"
#include "text/settings.h"
#include "text/train.h"

namespace qkv::text {
namespace {

using Pair = std::uint64_t;  // left in the high half, right in the low one

struct PairHash {
  std::size_t operator()(Pair pair) const { return mixed(pair); }
};

Pair pair_of(TokenId left, TokenId right) { return Pair{left} << 32 | right; }

// The words as symbols, how often each pair of neighbours occurs, and in which words.
class Corpus {
 public:
  Corpus(const std::vector<CountedWord>& words, TokenId first_byte) {
    words_.reserve(words.size());
    for (const CountedWord& word : words) {
      Word& added = words_.emplace_back();
      added.count = word.count;
      for (const char byte : word.bytes) {
        added.symbols.push_back(first_byte + static_cast<unsigned char>(byte));
      }
    }
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      const auto& symbols = words_[i].symbols;
      for (std::size_t k = 0; k + 1 < symbols.size(); ++k) {
        add(pair_of(symbols[k], symbols[k + 1]), words_[i].count, i);
      }
    }
    for (const auto& [pair, place] : pairs_) heap_.push({place.count, pair});
  }

  struct Best {
    std::int64_t count = 0;
    Pair pair = 0;
    // The most frequent first, among equals the one of the oldest tokens.
    bool operator<(const Best& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  // The most frequent pair; count 0 when there is none left.
  Best best() {
    while (!heap_.empty()) {
      const Best top = heap_.top();
      const auto found = pairs_.find(top.pair);
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count == top.count && count > 0) return top;
      heap_.pop();
      if (count > 0 && count < top.count) heap_.push({count, top.pair});
    }
    return {};
  }

  void merge(Pair pair, TokenId result) {
    std::vector<std::uint32_t> where = std::move(pairs_[pair].words);
    pairs_.erase(pair);
    std::ranges::sort(where);
    where.erase(std::unique(where.begin(), where.end()), where.end());
    changed_.clear();
    for (const std::uint32_t index : where) merge_in(index, pair, result);
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair grown : changed_) {
      if (const auto found = pairs_.find(grown); found != pairs_.end()) {
        heap_.push({found->second.count, grown});
      }
    }
  }

 private:
  struct Word {
    std::vector<TokenId> symbols;
    std::int64_t count = 0;
  };
  struct Place {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it occurs, or once did
  };

  void add(Pair pair, std::int64_t count, std::uint32_t word) {
    Place& place = pairs_[pair];
    place.count += count;
    if (place.words.empty() || place.words.back() != word) place.words.push_back(word);
  }
  void remove(Pair pair, std::int64_t count) {
    const auto found = pairs_.find(pair);
    if (found == pairs_.end()) return;
    found->second.count -= count;
    if (found->second.count <= 0) pairs_.erase(found);
  }

  void merge_in(std::uint32_t index, Pair pair, TokenId result) {
    Word& word = words_[index];
    auto& symbols = word.symbols;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (pair_of(symbols[i], symbols[i + 1]) != pair) continue;
      if (i > 0) remove(pair_of(symbols[i - 1], symbols[i]), word.count);
      if (i + 2 < symbols.size()) remove(pair_of(symbols[i + 1], symbols[i + 2]), word.count);
      symbols[i] = result;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      if (i > 0) note(pair_of(symbols[i - 1], result), word.count, index);
      if (i + 1 < symbols.size()) note(pair_of(result, symbols[i + 1]), word.count, index);
    }
  }
  void note(Pair pair, std::int64_t count, std::uint32_t word) {
    add(pair, count, word);
    changed_.push_back(pair);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Place, PairHash> pairs_;
  std::priority_queue<Best> heap_;
  std::vector<Pair> changed_;
};

}  // namespace

TokenizerFile train_byte_level_bpe(const std::vector<CountedWord>& words,
                                   const TokenizerTraining& training) {
  std::vector<TokenizerFile::Entry> vocabulary;
  const auto add = [&](std::string token) {
    vocabulary.push_back({std::move(token), static_cast<TokenId>(vocabulary.size()), 0});
  };
  for (const std::string& token : training.special_tokens) add(token);
  const auto first_byte = static_cast<TokenId>(vocabulary.size());
  for (unsigned byte = 0; byte < 256; ++byte)
    add(bytes_to_alphabet(std::string(1, static_cast<char>(byte))));
  const auto size = static_cast<std::size_t>(training.size);
  check(size >= vocabulary.size(),
        "train_tokenizer: size is {}, but bytes and special tokens need {}", training.size,
        vocabulary.size());
  TokenizerFile file = TokenizerFile::from_settings(trained_bpe_settings(training.special_tokens),
                                                    "the trained tokenizer");
  file.has_merges = true;
  Corpus corpus(words, first_byte);
  const std::size_t wanted = size - vocabulary.size();
  while (vocabulary.size() < size) {
    const Corpus::Best best = corpus.best();
    if (best.count < training.min_frequency || best.count == 0) break;
    const std::string left = vocabulary[best.pair >> 32].token;
    const std::string right = vocabulary[best.pair & 0xFFFFFFFF].token;
    corpus.merge(best.pair, static_cast<TokenId>(vocabulary.size()));
    file.merges.emplace_back(left, right);
    add(left + right);
    if (training.on_progress && file.merges.size() % 64 == 0) {
      const double done = static_cast<double>(file.merges.size()) / static_cast<double>(wanted);
      check(training.on_progress(0.5 + done / 2, "merging pairs"), "train_tokenizer: stopped");
    }
  }
  file.vocabulary = std::move(vocabulary);
  return file;
}

}  // namespace qkv::text
