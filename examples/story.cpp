// Tell a story, word by word as the model thinks of it: example_story DIR [BEGINNING]
#include <cstdio>

#include "qkv/qkv.h"

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL_FOLDER [BEGINNING]\n", argv[0]), 2;
  const char* beginning = argc > 2 ? argv[2] : "Once upon a time";
  try {
    // [story]
    const auto model = qkv::load_model(argv[1]);
    const auto tokenizer = qkv::Tokenizer::load(argv[1]);

    qkv::DecodeStream words(tokenizer);  // tokens in, whole characters out
    const auto show = [](const std::string& text) {
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    };
    std::vector<std::int64_t> prompt = tokenizer.encode(beginning);
    prompt.insert(prompt.begin(), model->info().bos_id);  // sentencepiece leaves this to the model
    for (const std::int64_t token : prompt) show(words.push(token));

    qkv::GenerateOptions options{.max_new_tokens = 100};  // greedy; .temperature = 0.8 is livelier
    options.on_token = [&](std::size_t, std::int64_t token) {
      show(words.push(token));
      return true;  // false would end it here
    };
    qkv::generate(*model, {prompt}, options);
    show(words.finish() + "\n");
    // [story]
  } catch (const qkv::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
