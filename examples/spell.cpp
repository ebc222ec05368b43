// How is it said? A model that reads letters and writes phonemes, without a tokenizer: the config
// lists both alphabets. example_spell DIR [WORD...]
#include <algorithm>
#include <cstdio>

#include "qkv/qkv.h"

namespace {

// The ids of the letters, between the tokens that begin and end a word.
std::vector<std::int64_t> ids_of(const std::string& word, const qkv::ModelInfo& info) {
  std::vector<std::int64_t> ids{info.bos_id};
  for (const char letter : word) {
    const auto& known = info.input_symbols;
    const auto found = std::find(known.begin(), known.end(), std::string(1, letter));
    if (found == known.end()) throw qkv::Error(word + ": not only letters the model knows");
    ids.push_back(found - known.begin());
  }
  ids.push_back(info.eos_ids.at(0));
  return ids;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL_FOLDER [WORD...]\n", argv[0]), 2;
  std::vector<std::string> words(argv + 2, argv + argc);
  if (words.empty()) words = {"attention", "transformer", "hello"};
  try {
    const auto model = qkv::load_model(argv[1]);
    std::vector<std::vector<std::int64_t>> prompts;
    for (const std::string& word : words) prompts.push_back(ids_of(word, model->info()));
    const auto said = qkv::generate(*model, prompts);  // all words at once
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::string phonemes;
      for (const std::int64_t id : said[i]) {
        phonemes += model->info().output_symbols.at(static_cast<std::size_t>(id));
      }
      std::printf("%s: %s\n", words[i].c_str(), phonemes.c_str());
    }
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
