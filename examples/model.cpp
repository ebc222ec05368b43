// Load a Hugging Face folder, look at it, continue a sequence of tokens: example_model DIR
// [model]
#include <cstdio>

#include "qkv/qkv.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s MODEL_FOLDER\n", argv[0]), 2;
  try {
    const auto model = qkv::load_model(argv[1]);  // config.json and model.safetensors, mapped
    std::printf("%s, %lld parameters\n", model->info().architecture.c_str(),
                static_cast<long long>(qkv::nn::count_parameters(*model)));

    const std::vector<std::vector<std::int64_t>> prompts{{5, 6, 7, 8}, {9, 10}};
    const qkv::GenerateOptions options{.max_new_tokens = 16, .temperature = 0.8, .top_p = 0.95};
    for (const auto& tokens : qkv::generate(*model, prompts, options)) {
      for (const std::int64_t token : tokens) std::printf("%lld ", static_cast<long long>(token));
      std::printf("\n");
    }
  } catch (const qkv::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
// [model]
