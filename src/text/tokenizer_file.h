// What a tokenizer.json says. The vocabulary and the merges, most of the file, are read straight
// into flat lists; the rest, a page of settings, is a Config. Every other source of a tokenizer
// (vocab.txt, merges.txt, training) becomes one of these first.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"
#include "text/vocabulary.h"

namespace qkv::text {

struct TokenizerFile {
  std::string name;      // in messages
  std::string settings;  // JSON of all but the vocabulary and the merges
  Config config;         // the same, read

  // Tokens with their ids; with their scores, too, where the model gives them (Unigram).
  struct Entry {
    std::string token;
    TokenId id = 0;
    double score = 0;
  };
  std::vector<Entry> vocabulary;
  bool vocabulary_is_list = false;  // [["a", -1.5], ...] as opposed to {"a": 0, ...}
  std::vector<std::pair<std::string, std::string>> merges;
  bool has_merges = false;

  // Throw Error unless it is one JSON object of the kind, of bounded size.
  static TokenizerFile read(const std::string& path);
  static TokenizerFile parse(std::string_view text, const std::string& name);
  // From settings written by the library itself.
  static TokenizerFile from_settings(std::string settings, const std::string& name);

  std::string to_json() const;
};

}  // namespace qkv::text
