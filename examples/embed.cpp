// Which of these sentences mean the same? A vector for each, and the cosine between any two:
// example_embed DIR [SENTENCE...]
#include <cstdio>
#include <numeric>

#include "qkv/qkv.h"

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL_FOLDER [SENTENCE...]\n", argv[0]), 2;
  std::vector<std::string> sentences(argv + 2, argv + argc);
  if (sentences.empty()) {
    sentences = {"A cat sleeps on the sofa.", "A kitten naps on the couch.",
                 "The committee approved the annual budget."};
  }
  try {
    // [embed]
    const auto model = qkv::load_model(argv[1]);
    const auto tokenizer = qkv::Tokenizer::load(argv[1]);

    std::vector<std::vector<float>> vectors;
    for (const std::string& sentence : sentences) {
      const std::vector<std::int64_t> ids = tokenizer.encode(sentence);
      const auto length = static_cast<std::int64_t>(ids.size());
      const qkv::ModelOutput output = (*model)({.ids = qkv::Tensor::from(ids, {1, length})});
      vectors.push_back(qkv::mean_embedding(output.last_hidden).to_vector<float>());
    }
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const float cosine = std::inner_product(vectors[i].begin(), vectors[i].end(),
                                                vectors[j].begin(), 0.0f);  // of unit vectors
        std::printf("%.3f  %s / %s\n", cosine, sentences[j].c_str(), sentences[i].c_str());
      }
    }
    // [embed]
  } catch (const qkv::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
